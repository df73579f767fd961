"""When refreshes are due, in steps, and where what they make goes."""

from collections.abc import Mapping

import numpy as np

from xmc_jax import config as configs
from xmc_jax import mesh
from xmc_jax.contract import Array, PyTree, Refresh
from xmc_jax.refresh.snapshot import Snapshot


def due(refreshes: Mapping[str, Refresh], step: int, steps_per_epoch: int) -> list[str]:
  """The refreshes to run after `step` steps, before the next one."""
  return [name for name, refresh in refreshes.items() if _is_due(refresh, step, steps_per_epoch)]


def next_due(refreshes: Mapping[str, Refresh], step: int, last: int, steps_per_epoch: int) -> int:
  """The first step after `step` at which a refresh is due; `last` if there is none before it."""
  later = [last]
  for refresh in refreshes.values():
    first, every = _in_steps(refresh, steps_per_epoch)
    if step < first:
      later.append(first)
    elif every:
      later.append(first + ((step - first) // every + 1) * every)
  return min(later)


def renew(
  name: str, refresh: Refresh, snapshot: Snapshot, fresh: Mapping[str, np.ndarray], aux: PyTree
) -> tuple[dict[str, np.ndarray], PyTree]:
  """Runs one refresh.

  Args:
    name: of the refresh.
    refresh: the refresh.
    snapshot: what it may look at.
    fresh: what refreshes made so far, on the host.
    aux: the method's, on the devices.

  Returns:
    `(fresh, aux)`, one of them with what was made.
  """
  made = refresh.compute(snapshot)
  if not refresh.into_aux:
    return {**fresh, name: made}, aux
  return dict(fresh), {**aux, name: _like(made, aux[name])}


def _like(made: np.ndarray, before: Array) -> Array:
  """On the devices as what it takes the place of."""
  return mesh.place(np.asarray(made, before.dtype), before.sharding)


def _is_due(refresh: Refresh, step: int, steps_per_epoch: int) -> bool:
  first, every = _in_steps(refresh, steps_per_epoch)
  return step == first or (step > first and every > 0 and (step - first) % every == 0)


def _in_steps(refresh: Refresh, steps_per_epoch: int) -> tuple[int, int]:
  """(first step, every so many); 0 is once."""
  return (
    configs.steps(refresh.first_epoch, steps_per_epoch),
    configs.steps(refresh.every_epochs, steps_per_epoch),
  )
