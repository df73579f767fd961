"""Ends a training when its time is over (`config.train.minutes`), or its loss or gradient is not finite."""

import math
import pathlib

import jax
import numpy as np

from xmc_jax.console import say
from xmc_jax.distributed import runtime
from xmc_jax.errors import UserError
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.storage import atomic
from xmc_jax.storage.checkpoints import Checkpoints
from xmc_jax.types import Array

_StepMetrics = tuple[int, np.ndarray, dict[str, Array]]  # (step, its training rows, its metrics)


class TimeLimit:
  """Knows whether another epoch fits into the time of a run, which includes that of stopped processes.

  Args:
    minutes: from the run's beginning; 0 is no limit.
    writer: has the run's time by stage.
  """

  def __init__(self, minutes: float, writer: MetricWriter):
    self._minutes, self._writer = minutes, writer
    self._spent = self._without_compiling()

  def end_epoch(self) -> bool:
    """Returns, on every process, whether another epoch like the one that ends here is too long."""
    before, self._spent = self._spent, self._without_compiling()
    end = sum(self._writer.seconds.values()) + self._spent - before
    is_over = bool(self._minutes) and bool(runtime.from_main_process(np.array(end > 60 * self._minutes)))
    if is_over:
      say(f"train: another epoch does not fit into train.minutes = {self._minutes:g}; stopping")
    return is_over

  def _without_compiling(self) -> float:
    return sum(self._writer.seconds.values()) - self._writer.seconds["compile"]


class NonFiniteGuard:
  """Reads a step's metrics one step late, so that the device never waits; stops on NaN and Inf.

  Args:
    checkpoints: name the last good checkpoint; their record counts the skipped steps.
    folder: where the training rows of a broken step are written.
    max_skipped: number of broken steps that may be skipped, as TrainStep does, before the training stops.

  Attributes:
    last: the metrics of the last step whose loss and gradient were finite.
  """

  def __init__(self, checkpoints: Checkpoints, folder: pathlib.Path, max_skipped: int = 0):
    self._checkpoints, self._record = checkpoints, checkpoints.record
    self._folder, self._max_skipped = folder, max_skipped
    self._pending: _StepMetrics | None = None
    self.last: dict[str, float] = {}

  def add(self, step: int, rows: np.ndarray, metrics: dict[str, Array]) -> None:
    """Keeps the metrics of a step, and reads those of the step before."""
    self.flush()
    self._pending = step, rows, metrics

  def flush(self) -> None:
    """Reads the metrics of the latest step."""
    if self._pending is None:
      return
    step, rows, metrics = self._pending
    self._pending = None
    found = {name: float(value) for name, value in jax.device_get(metrics).items()}
    broken = [name for name in ("loss", "gradient_norm") if not math.isfinite(found[name])]
    if not broken:
      self.last = found
      return
    what = f"train/{broken[0]} is {found[broken[0]]} at step {step}, {self._named(step, rows)}"
    if self._record.skipped < self._max_skipped:
      self._record.skipped += 1
      say(f"{what}; skipped ({self._record.skipped} of at most {self._max_skipped} steps)")
      return
    raise UserError(
      f"{what}; {self._checkpoints.last_good()}; try a lower train.learning_rate, or "
      "table_learning_rate where there are tables, or train.clip_norm=1; or skip such steps by "
      "train.max_skipped_steps"
    )

  def _named(self, step: int, rows: np.ndarray) -> str:
    """Names the batch's training rows: a few in the message, all of them in a file."""
    if len(rows) <= 10:
      return f"training rows {', '.join(map(str, rows.tolist()))}"
    path = self._folder / f"rows_of_step_{step}.txt"
    path.parent.mkdir(exist_ok=True)
    atomic.write_text(path, "".join(f"{row}\n" for row in rows.tolist()))
    return f"training rows {', '.join(map(str, rows[:10].tolist()))}, ... (all {len(rows)} in {path})"
