"""What pip installs: the package, its data, the experiments, and a command of its own."""

import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
  place = tmp_path_factory.mktemp("wheel")
  source = place / "source"  # setuptools builds beside what it reads
  source.mkdir()
  for name in ("xmc_jax", "experiments"):
    shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
  for name in ("pyproject.toml", "requirements.txt", "README.md", "LICENSE"):
    shutil.copy(ROOT / name, source / name)
  subprocess.run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", place, source], check=True)
  (wheel,) = place.glob("xmc_jax-*.whl")
  subprocess.run([*PIP, "install", "--no-deps", "--target", place / "site", wheel], check=True)
  return place / "site"


def test_its_page_says_what_it_is(installed):
  """Licence, description and the extras that README names; the bundled data's own notice comes along."""
  (place,) = installed.glob("xmc_jax-*.dist-info")
  found = importlib.metadata.PathDistribution(place).metadata
  assert found["License-Expression"] == "Apache-2.0" and found["Description-Content-Type"] == "text/markdown"
  assert found["Description"].startswith("# xmc_jax")
  assert {"cuda12", "cuda13", "tpu"} <= set(found.get_all("Provides-Extra"))
  licences = {
    path.relative_to(place / "licenses").as_posix() for path in place.glob("licenses/**/*") if path.is_file()
  }
  assert licences == {"LICENSE", "xmc_jax/data/bundled/LF-DebianTitles/NOTICE"}


def _command(installed, folder, *arguments):
  return subprocess.run(
    [installed / "bin" / "xmc-jax", *arguments],
    cwd=folder,
    env={**os.environ, "PYTHONPATH": str(installed)},
    capture_output=True,
    text=True,
    timeout=300,
  )


def test_the_command_explains_itself(installed, tmp_path):
  ended = _command(installed, tmp_path, "--help")
  assert ended.returncode == 0, ended.stderr
  assert "--config=experiments/dexml.py" in ended.stdout and "--workdir" in ended.stdout


def test_experiments_and_bundled_data_come_with_it(installed, tmp_path):
  """Far from the repository: only what was installed is there."""
  ended = _command(installed, tmp_path, "--mode=prepare", "--config=experiments/ramen.py:debian")
  assert ended.returncode == 0, ended.stderr
  assert "LF-DebianTitles" in ended.stdout and "11,438" in ended.stdout
  assert {path.name for path in (installed / "experiments").glob("*.py")} >= {"common.py", "dexml.py"}


def test_the_servers_page_comes_with_it(installed):
  page = installed / "xmc_jax" / "serve" / "page"
  assert {path.name for path in page.iterdir()} >= {"index.html", "page.css", "page.js", "icon.svg"}


def test_a_config_of_ones_own_comes_first(installed, tmp_path):
  (tmp_path / "experiments").mkdir()
  (tmp_path / "experiments" / "dexml.py").write_text("1 / 0\n")
  ended = _command(installed, tmp_path, "--config=experiments/dexml.py")
  assert ended.returncode == 1 and "ZeroDivisionError" in ended.stderr
  assert "Traceback" not in ended.stderr
