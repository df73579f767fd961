"""When refreshes are due, in steps."""

from collections.abc import Mapping

from xmc_jax import config as configs
from xmc_jax.contract import Refresh


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


def _is_due(refresh: Refresh, step: int, steps_per_epoch: int) -> bool:
  first, every = _in_steps(refresh, steps_per_epoch)
  return step == first or (step > first and every > 0 and (step - first) % every == 0)


def _in_steps(refresh: Refresh, steps_per_epoch: int) -> tuple[int, int]:
  """(first step, every so many); 0 is once."""
  return (
    configs.steps(refresh.first_epoch, steps_per_epoch),
    configs.steps(refresh.every_epochs, steps_per_epoch),
  )
