"""What pip builds and installs: the package, its data, the experiments, and a command of its own."""

import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest

from tests import command_lines

ROOT = pathlib.Path(__file__).parent.parent
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory):
  """Returns a folder with a source distribution, and the wheel that is built from it."""
  place = tmp_path_factory.mktemp("wheel")
  source = place / "source"  # setuptools builds beside what it reads
  source.mkdir()
  for name in ("xmc_jax", "experiments"):
    shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
  for name in ("pyproject.toml", "requirements.txt", "README.md", "LICENSE"):
    shutil.copy(ROOT / name, source / name)
  build = f"from setuptools import build_meta; build_meta.build_sdist({str(place)!r})"
  subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
  (sdist,) = place.glob("xmc_jax-*.tar.gz")
  subprocess.run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", place, sdist], check=True)
  return place


@pytest.fixture(scope="module")
def installed(built):
  (wheel,) = built.glob("xmc_jax-*.whl")
  subprocess.run([*PIP, "install", "--no-deps", "--target", built / "site", wheel], check=True)
  return built / "site"


def test_every_file_comes_along(built):
  """Data and weights too; of experiments those of methods, as `claims` writes into the repository's docs."""
  (wheel,) = built.glob("xmc_jax-*.whl")
  with zipfile.ZipFile(wheel) as packed:
    names = {name for name in packed.namelist() if ".dist-info/" not in name}
  source = built / "source"
  paths = [path for path in source.glob("xmc_jax/**/*") if path.is_file()]
  paths += source.glob("experiments/*.py")
  assert names == {path.relative_to(source).as_posix() for path in paths}
  assert {"xmc_jax/retrieval/fixed_weights.json", "experiments/dexml.py"} < names
  assert "xmc_jax/data/bundled/LF-DebianTitles/NOTICE" in names


def test_its_page_says_what_it_is(installed):
  """Licence, description, requirements and extras; the bundled data's own notice comes along."""
  (place,) = installed.glob("xmc_jax-*.dist-info")
  found = importlib.metadata.PathDistribution(place).metadata
  assert found["License-Expression"] == "Apache-2.0" and found["Description-Content-Type"] == "text/markdown"
  assert found["Description"].startswith("# xmc_jax")
  project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
  assert set(found.get_all("Provides-Extra")) == set(project["optional-dependencies"])
  needed = [line for line in found.get_all("Requires-Dist") if "extra ==" not in line]
  listed = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
  assert len(needed) == sum(not line.startswith("#") for line in listed)
  files = [path for path in place.glob("licenses/**/*") if path.is_file()]
  licences = {path.relative_to(place / "licenses").as_posix() for path in files}
  assert licences == {"LICENSE", "xmc_jax/data/bundled/LF-DebianTitles/NOTICE"}


def _command(installed, folder, *arguments):
  command = installed / "bin" / "xmc-jax"
  return command_lines.run(command, *arguments, folder=folder, PYTHONPATH=installed)


def test_experiments_and_bundled_data_come_with_it(installed, tmp_path):
  """Far from the repository: only what was installed is there."""
  ended = _command(installed, tmp_path, "--mode=prepare", "--config=experiments/ramen.py:debian")
  assert ended.returncode == 0, ended.stderr
  assert "LF-DebianTitles" in ended.stdout and "11,438" in ended.stdout
  assert {path.name for path in (installed / "experiments").glob("*.py")} >= {"common.py", "dexml.py"}


def test_a_config_of_ones_own_comes_first(installed, tmp_path):
  (tmp_path / "experiments").mkdir()
  (tmp_path / "experiments" / "dexml.py").write_text("1 / 0\n")
  ended = _command(installed, tmp_path, "--config=experiments/dexml.py")
  assert ended.returncode == 1 and "ZeroDivisionError" in ended.stderr
  assert "Traceback" not in ended.stderr
  (tmp_path / "experiments" / "__init__.py").touch()
  of_package = "from xmc_jax.estimator import settings; settings.make('ngame', 'bag', {}, None)"
  environment = {**os.environ, "PYTHONPATH": str(installed)}
  subprocess.run([sys.executable, "-c", of_package], cwd=tmp_path, env=environment, check=True)
