"""How long a training waits for its batches, and how long building one takes.

  python -m benchmarks.batches --methods dexml ngame --num_epochs=2       # a bag: short steps
  python -m benchmarks.batches --methods ramen --preset=debian_minilm3

The library's own loop runs on the bundled data, with its refreshes. Waiting is the time that the loop is
blocked because no batch is ready; the device may still be busy meanwhile, so this is an upper bound of its
idle time. Compilation, refreshes and evaluations are not counted.
"""

import argparse
import importlib
import pathlib
import statistics
import tempfile
import time

from benchmarks import flags
from xmc_jax.batching import prefetch
from xmc_jax.runs import create
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.training import loop

_UNDISTURBED = {"eval.every_epochs": 0.0, "checkpoint.every_epochs": 0.0}


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
    for _ in range(first, last):
      start = time.perf_counter()
      batch = next(waiting)
      self.waited.append(time.perf_counter() - start)
      yield batch


def wait(name: str, given: argparse.Namespace, folder: pathlib.Path) -> None:
  """Trains one method and prints the share of its time spent waiting."""
  config = importlib.import_module(f"xmc_jax.experiments.{name}").get_config(given.preset)
  config.update_from_flattened_dict({**_UNDISTURBED, "train.num_epochs": given.num_epochs})
  writer, watched = MetricWriter(folder), Watched()
  run = create.create(config, folder, writer)
  loop.prefetch = watched.prefetch
  loop.train(run, writer)
  waited, trained = sum(watched.waited), writer.seconds["train"]
  print(
    f"{name}: {len(watched.waited):,} steps of {1e3 * trained / len(watched.waited):.1f} ms; a batch is "
    f"built in {1e3 * statistics.median(watched.built):.1f} ms; waited {1e3 * waited:.0f} ms of "
    f"{trained + waited:.1f} s = {waited / (trained + waited):.2%}, "
    f"the longest {1e3 * max(watched.waited):.0f} ms",
    flush=True,
  )


def main() -> None:
  given = flags.parse(__doc__, methods=("dexml", "ngame"), preset="debian", num_epochs=4)
  for name in given.methods:
    with tempfile.TemporaryDirectory() as folder:
      wait(name, given, pathlib.Path(folder) / name)


if __name__ == "__main__":
  main()
