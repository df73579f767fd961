"""Schedules refreshes in steps, and stores their results."""

from collections.abc import Mapping
from typing import cast

import jax
import numpy as np

from xmc_jax import config as configs
from xmc_jax.console import say
from xmc_jax.distributed import runtime, sharding, split_table
from xmc_jax.distributed.split_table import SplitTable, Table
from xmc_jax.refresh.snapshot import Snapshot
from xmc_jax.types import BATCHES, Array, PyTree, Refresh


def due(refreshes: Mapping[str, Refresh], step: int, steps_per_epoch: int) -> list[str]:
  """Returns the names of the refreshes to run after `step` steps, before the next one."""
  return [name for name, refresh in refreshes.items() if _next(refresh, step, steps_per_epoch) == step]


def next_due(refreshes: Mapping[str, Refresh], step: int, last: int, steps_per_epoch: int) -> int:
  """Returns the first step after `step` at which a refresh is due, at most `last`."""
  later = (_next(refresh, step + 1, steps_per_epoch) for refresh in refreshes.values())
  return min([last, *(found for found in later if found is not None)])


def _next(refresh: Refresh, step: int, steps_per_epoch: int) -> int | None:
  """Returns the first step from `step` on at which a refresh is due; None if there is none."""
  first = configs.steps(refresh.first_epoch, steps_per_epoch)
  every = refresh.every_steps or configs.steps(refresh.every_epochs, steps_per_epoch)
  unit = steps_per_epoch if refresh.at_epoch_start else 1

  def put_off(planned: int) -> int:
    return -(-planned // unit) * unit

  if step <= put_off(first):
    return put_off(first)
  if not every:
    return None
  # A refresh planned up to one epoch earlier may have been put off until now.
  planned = first + max(0, (step - unit - first) // every) * every
  while put_off(planned) < step:
    planned += every
  return put_off(planned)


def renew(
  name: str, refresh: Refresh, snapshot: Snapshot, refreshed: Mapping[str, np.ndarray], extra_state: PyTree
) -> tuple[dict[str, np.ndarray], PyTree]:
  """Runs one refresh; every process receives the same result: the main process's, if it is whole.

  Args:
    name: name of the refresh.
    refresh: the refresh.
    snapshot: its input.
    refreshed: results of refreshes so far, on the host.
    extra_state: the method's extra_state, on the devices.

  Returns:
    `(refreshed, extra_state)`, one of them with the new result.
  """
  made = refresh.compute(snapshot)
  if made is None:
    return dict(refreshed), extra_state
  if not isinstance(made, SplitTable):
    made = runtime.from_main_process(made)
  if refresh.target == BATCHES:
    return {**refreshed, name: split_table.whole(cast(Table, made))}, extra_state
  return dict(refreshed), {**extra_state, name: _like(made, extra_state[name])}


def shares(name: str, refreshed: Mapping[str, np.ndarray]) -> dict[str, float]:
  """Returns the fraction of True in a boolean refresh, for metrics.jsonl, and prints it; else {}."""
  made = refreshed.get(name)
  if made is None or made.dtype != bool:
    return {}
  share = float(made.mean()) if made.size else 0.0
  say(f"refresh: {name}: {made.sum():,} of {made.size:,} edges, {share:.1%}")
  return {f"refresh/{name}": share}


def _like(made: Array | SplitTable, before: jax.Array) -> Array:
  """Places a result on the devices, with the type, rows and sharding of the array that it replaces."""
  if isinstance(made, SplitTable):
    return made.placed(before.sharding, len(before)).astype(before.dtype)
  return sharding.place_rows(np.asarray(made, before.dtype), before.sharding, len(before))
