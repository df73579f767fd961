"""How long training waits for the host to build its batches, as a share of the time of the steps.

  PYTHONPATH=.:benchmarks python benchmarks/input_wait.py dexml ngame unidec       # bags: the shortest steps
  PYTHONPATH=.:benchmarks python benchmarks/input_wait.py ngame ramen --preset=debian_minilm3 --num_epochs=1

The library's own loop trains each method on the bundled data, with its refreshes. Waiting is the time that
the loop is blocked because no batch is ready. The device may still be busy meanwhile, so this is an upper
bound of its idle time. Compilation, refreshes and evaluations are not counted. The time that a batch is built
in is that of the host's thread, which runs beside the steps.
"""

import argparse
import importlib
import pathlib
import statistics
import tempfile
import time

from xmc_jax.batching import prefetch
from xmc_jax.runs import create
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.training import loop

_ALIKE = {"eval.every_epochs": 0.0, "checkpoint.every_epochs": 0.0}


class Watched:
  """Wraps `batching.prefetch.prefetch`; records how long each batch is built, and how long it is awaited."""

  def __init__(self):
    self.built, self.waited = [], []

  def prefetch(self, build, first, last, depth=3):
    def timed(step):
      start = time.perf_counter()
      batch = build(step)
      self.built.append(time.perf_counter() - start)
      return batch

    waiting = prefetch.prefetch(timed, first, last, depth)
    for step in range(first, last):
      start = time.perf_counter()
      batch = next(waiting)
      self.waited.append((step, time.perf_counter() - start))
      yield batch


def measure(module: str, preset: str, overrides: dict, folder: pathlib.Path) -> None:
  """Trains one method and prints the share of its time spent waiting."""
  config = importlib.import_module(f"experiments.{module}").get_config(preset)
  config.update_from_flattened_dict({**_ALIKE, **overrides})
  writer, watched = MetricWriter(folder), Watched()
  run = create.create(config, folder, writer)
  loop.prefetch = watched.prefetch
  loop.train(run, writer)
  waited = [seconds for _, seconds in watched.waited]
  trained = writer.seconds["train"]
  print(
    f"{module}: {len(waited):,} steps of {1e3 * trained / len(waited):.1f} ms; a batch is built in "
    f"{1e3 * statistics.median(watched.built):.1f} ms; waited {1e3 * sum(waited):.0f} ms of "
    f"{trained + sum(waited):.1f} s = {sum(waited) / (trained + sum(waited)):.2%}, "
    f"the longest {1e3 * max(waited):.0f} ms",
    flush=True,
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("methods", nargs="+", help="experiments")
  parser.add_argument("--preset", default="debian")
  parser.add_argument("--num_epochs", type=int, default=4)
  given = parser.parse_args()
  for module in given.methods:
    with tempfile.TemporaryDirectory() as folder:
      overrides = {"train.num_epochs": given.num_epochs}
      measure(module, given.preset, overrides, pathlib.Path(folder) / module)


if __name__ == "__main__":
  main()
