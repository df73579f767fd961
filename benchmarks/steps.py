"""What a method adds to a training step: label prototypes, metadata graphs, each compared with NGAME's step.

  PYTHONPATH=. python benchmarks/steps.py ngame dexa prime                    # a bag; others beside the first
  PYTHONPATH=. python benchmarks/steps.py ngame ramen --preset=debian_minilm3 # or debian_minilm6

All use the bundled data, the same encoder, batches of the same number of points and one uniformly sampled
positive per point, so their pools have the same size. Steps run in turns in one process, on batches that are
built beforehand. Compilation is reported separately. Memory is XLA's estimate for the step: arguments and
temporaries.
"""

import argparse
import importlib
import pathlib
import tempfile
import time

import jax
from paired_timing import compare

from xmc_jax import refresh
from xmc_jax.distributed import sharding
from xmc_jax.runs import create
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.training import optimizer
from xmc_jax.training.step import TrainStep
from xmc_jax.types import EXTRA_STATE

_ALIKE = {
  "method.num_positives": 1,
  "method.positive_sampling": "uniform",
  "method.clusters_first_epoch": 1e6,
  "checkpoint.every_epochs": 0.0,
}


class Step:
  """Runs a method's training step on batches of random points."""

  def __init__(
    self, module: str, preset: str, batch_size: int, num_batches: int, folder: pathlib.Path, **overrides
  ):
    config = importlib.import_module(f"experiments.{module}").get_config(preset)
    config.update_from_flattened_dict({**_ALIKE, "train.batch_size": batch_size, **overrides})
    writer = MetricWriter(folder / module)
    self.name, run = module, create.create(config, folder / module, writer)
    optimiser = optimizer.make(config, 1000)
    self._step = TrainStep(run.method, run.mesh, run.config.train, optimiser, writer)
    state = self._step.first_state(*run.initial_parameters())
    snapshot, extra_state = run.snapshot(state.params, state.extra_state, 0), state.extra_state
    for name, definition in run.method.refreshes.items():
      if definition.target == EXTRA_STATE:
        _, extra_state = refresh.renew(name, definition, snapshot, {}, extra_state)
    self._state = state._replace(extra_state=extra_state)
    self.host_batches = [run.batches.build(step) for step in range(num_batches)]
    self._batches = [sharding.put_batch(batch, run.mesh) for batch in self.host_batches]
    start = time.perf_counter()
    self._state, metrics = self._step(self._state, self._batches[0])
    self.first_loss = float(metrics["loss"])
    (program,) = self._step._programs.values()
    found = program.memory_analysis()
    print(
      f"{module}: {len(self._batches[0].rows):,} points, pools of {len(self._batches[0].columns):,} columns; "
      f"compiled in {time.perf_counter() - start:.1f} s, "
      f"{(found.argument_size_in_bytes + found.temp_size_in_bytes) / 1e6:,.0f} MB",
      flush=True,
    )

  def run(self) -> None:
    for batch in self._batches:
      self._state, metrics = self._step(self._state, batch)
    jax.block_until_ready(metrics)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("methods", nargs="+", help="experiments; all are compared with the first")
  parser.add_argument("--preset", default="debian")
  parser.add_argument("--batch_size", type=int, default=256)
  parser.add_argument("--num_batches", type=int, default=5)
  parser.add_argument("--rounds", type=int, default=7)
  given = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    first, *others = (
      Step(module, given.preset, given.batch_size, given.num_batches, pathlib.Path(folder))
      for module in given.methods
    )
    print(f"{given.num_batches} steps at a time:")
    for other in others:
      compare(first, other, given.rounds)


if __name__ == "__main__":
  main()
