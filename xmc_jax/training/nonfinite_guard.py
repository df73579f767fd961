"""Stops a training whose numbers are no longer finite."""

import math
import pathlib

import jax
import numpy as np

from xmc_jax.console import say
from xmc_jax.errors import UserError
from xmc_jax.storage import atomic
from xmc_jax.storage.checkpoints import Checkpoints
from xmc_jax.types import Array

_Numbers = tuple[int, np.ndarray, dict[str, Array]]  # of a step: (step, its training rows, metrics)


class NonFiniteGuard:
  """Reads a step's numbers one step late, so that the device never waits; stops on NaN and Inf.

  Args:
    checkpoints: the newest is the last good one; their record counts the steps skipped so far.
    folder: where a broken step's row ids are written.
    max_skipped: how many broken steps may be skipped, as TrainStep does, before it stops.

  Attributes:
    last: the numbers of the last step that was not broken.
  """

  def __init__(self, checkpoints: Checkpoints, folder: pathlib.Path, max_skipped: int = 0):
    self._checkpoints, self._record = checkpoints, checkpoints.record
    self._folder, self._max_skipped = folder, max_skipped
    self._pending: _Numbers | None = None
    self.last: dict[str, float] = {}

  def add(self, step: int, rows: np.ndarray, metrics: dict[str, Array]) -> None:
    pending, self._pending = self._pending, (step, rows, metrics)
    self._read(pending)

  def flush(self) -> None:
    pending, self._pending = self._pending, None
    self._read(pending)

  def _read(self, pending: _Numbers | None) -> None:
    if pending is None:
      return
    step, rows, metrics = pending
    found = {name: float(value) for name, value in jax.device_get(metrics).items()}
    broken = [name for name in ("loss", "gradient_norm") if not math.isfinite(found[name])]
    if not broken:
      self.last = found
      return
    what = f"train/{broken[0]} is {found[broken[0]]} at step {step}, {self._named(step, rows)}"
    if self._record.skipped < self._max_skipped:
      self._record.skip_step()
      say(f"{what}; skipped, as {self._record.skipped} of at most {self._max_skipped} steps")
      return
    raise UserError(
      f"{what}; {self._checkpoints.last_good()}; try a lower train.learning_rate, or "
      "table_learning_rate where there are tables, or train.clip_norm=1; or leave some such steps out, by "
      "train.max_skipped_steps"
    )

  def _named(self, step: int, rows: np.ndarray) -> str:
    """The batch's training rows: a few in words, all of them in a file."""
    if len(rows) <= 10:
      return f"training rows {', '.join(map(str, rows.tolist()))}"
    path = self._folder / f"rows_of_step_{step}.txt"
    path.parent.mkdir(exist_ok=True)
    atomic.write_text(path, "".join(f"{row}\n" for row in rows.tolist()))
    return f"training rows {', '.join(map(str, rows[:10].tolist()))}, ... (all {len(rows)} in {path})"
