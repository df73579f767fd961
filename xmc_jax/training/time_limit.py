"""Ends a training in time (`config.train.minutes`)."""

import numpy as np

from xmc_jax.console import say
from xmc_jax.distributed import runtime
from xmc_jax.runs.metric_writer import MetricWriter


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
