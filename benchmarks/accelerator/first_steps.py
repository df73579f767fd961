"""Compares the first steps of each method on this device with a CPU's."""

import importlib
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import ml_collections
import numpy as np

from benchmarks.accelerator.facts import await_file
from xmc_jax import refresh
from xmc_jax.distributed import sharding
from xmc_jax.runs import create
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.runs.run import Run
from xmc_jax.runs.trained import Trained
from xmc_jax.training import loop, optimizer
from xmc_jax.training.step import TrainStep
from xmc_jax.types import EXTRA_STATE, TrainState

METHODS = ("dexml", "dpr", "ance", "ova", "unidec", "depsl", "ngame", "dexa", "prime", "ramen", "rae_xmc")
TINY = ("ngame", "dexa")
# Of float32 sums in another order, and of scores in three products of bfloat16 parts.
MOST = {"loss": 1e-4, "gradient_norm": 2e-3}
_NUM_STEPS = 2
SMALL = {
  "encoder.name": "bag",
  "encoder.init_table": "",
  "encoder.tokenizer": "train",
  "encoder.width": 64,
  "encoder.dtype": "float32",
  "encoder.dropout": 0.0,
  "train.batch_size": 64,
}


def started(config: ml_collections.ConfigDict, folder: pathlib.Path) -> tuple[Run, TrainStep, TrainState]:
  """Creates a run in a folder; returns it, its step, and its first state with what refreshes add to it."""
  writer = MetricWriter(folder)
  run = create.create(config, folder, writer)
  step = TrainStep(run.method, run.mesh, run.config.train, optimizer.make(config, 1000), writer)
  state = step.first_state(*run.initial_parameters())
  extra_state, snapshot = state.extra_state, Trained(run, state.params, state.extra_state).snapshot()
  for name, definition in run.method.refreshes.items():
    if definition.target == EXTRA_STATE:
      _, extra_state = refresh.renew(name, definition, snapshot, {}, extra_state)
  return run, step, state._replace(extra_state=extra_state)


def _first_steps(method: str, folder: pathlib.Path, leaves: list[np.ndarray] | None = None) -> dict[str, Any]:
  """Returns 'loss' and 'gradient_norm' of the first steps, and the leaves of the extra state before them.

  Args:
    method: the name of an experiment.
    folder: for the run and its data.
    leaves: of an extra state, to use in place of what refreshes make here.
  """
  config = importlib.import_module(f"xmc_jax.experiments.{method}").get_config("debian")
  config.update_from_flattened_dict({**SMALL, "data.cache_dir": str(folder / "cache")})
  run, step, state = started(config, folder / method)
  extra_state = state.extra_state
  if leaves is not None:
    here, structure = jax.tree.flatten(extra_state)
    extra_state = structure.unflatten(jax.device_put(new, old.sharding) for old, new in zip(here, leaves))
  before = jax.device_get(jax.tree.leaves(extra_state))
  state, metrics = state._replace(extra_state=extra_state), []
  static = loop.static_labels(run.batches, run.mesh)
  for number in range(_NUM_STEPS):
    batch = sharding.put_batch(run.batches.build(number), run.mesh)
    state, of_step = step(state, batch._replace(**static))
    metrics.append(jax.device_get(of_step))
  return {
    **{key: np.array([each[key] for each in metrics]) for key in MOST},
    **{f"leaf{number:03d}": leaf for number, leaf in enumerate(before)},
  }


def write(folder: pathlib.Path, methods: tuple[str, ...]) -> None:
  """Writes the first steps of each method by this process's device, a file each."""
  for method in methods:
    steps = _first_steps(method, folder / "there")
    np.savez(folder / f"{method}.part.npz", **steps)
    (folder / f"{method}.part.npz").rename(folder / f"{method}.npz")


def differences(folder: pathlib.Path, methods: tuple[str, ...]) -> Iterator[tuple[str, dict[str, float]]]:
  """Yields each method and how far its loss and gradient norm here are from those in `folder`, as shares.

  Waits for each file. What refreshes have added to the state there is used here, too, as rounding may
  decide a cluster.
  """
  for method in methods:
    with np.load(await_file(folder / f"{method}.npz")) as there:
      here = _first_steps(method, folder / "here", [there[key] for key in there if key.startswith("leaf")])
      yield method, {key: float(np.max(np.abs(here[key] / there[key] - 1))) for key in MOST}
