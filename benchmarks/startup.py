"""How long the command line takes to answer: --help, --version, a config error, a missing run.

  PYTHONPATH=.:benchmarks python benchmarks/startup.py

Each is a new process, in turns with an interpreter that imports only absl and ml_collections, which is the
lower limit. The medians are over --rounds turns, without the first turn, which fills the disk cache.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import time

_ROOT = pathlib.Path(__file__).parents[1]
_COMMANDS = {
  "absl and ml_collections": ["-c", "import absl.app, absl.flags, ml_collections.config_flags"],
  "--help": ["-m", "xmc_jax.main", "--help"],
  "a wrong key": ["-m", "xmc_jax.main", "--config=experiments/dexml.py", "--config.train.batchsize=3"],
  "a wrong value": ["-m", "xmc_jax.main", "--config=experiments/dexml.py", "--config.train.batch_size=-3"],
  "no such run": ["-m", "xmc_jax.main", "--mode=predict", "--workdir=no/such/run", "--input=none.txt"],
}


def seconds_of(arguments: list[str]) -> float:
  start = time.perf_counter()
  subprocess.run(
    [sys.executable, *arguments], cwd=_ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
  )
  return time.perf_counter() - start


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--rounds", type=int, default=7)
  given = parser.parse_args()
  found = {name: [] for name in _COMMANDS}
  for _ in range(1 + given.rounds):
    for name, arguments in _COMMANDS.items():
      found[name].append(seconds_of(arguments))
  for name, seconds in found.items():
    print(f"{name}: median {statistics.median(seconds[1:]):.2f} s, worst {max(seconds[1:]):.2f} s")


if __name__ == "__main__":
  main()
