"""Writes what a run measures: stage times, metrics.jsonl, TensorBoard."""

import collections
import contextlib
import json
import pathlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from xmc_jax.console import say
from xmc_jax.distributed import runtime
from xmc_jax.storage import atomic

if TYPE_CHECKING:
  from tensorboard.summary import Writer


class MetricWriter:
  """Writes the stage times and metrics of one run.

  Args:
    workdir: where metrics.jsonl and TensorBoard files go.

  Attributes:
    seconds: time by stage, over all the processes that worked on the run.
  """

  def __init__(self, workdir: pathlib.Path):
    # A Counter returns 0 for a missing key, and its `update` adds; its type allows only integers.
    self.seconds = cast(dict[str, float], collections.Counter())
    self._workdir = workdir
    self._tensorboard: Writer | None = None

  def resume(self, first_step: int, seconds: dict[str, float], unscored: bool = False) -> None:
    """Continues a run's records: its stage times so far, and its metrics up to a checkpoint.

    Drops what a killed process wrote after its last checkpoint, and with `unscored` also the validation of
    the checkpoint itself: both will be written again.
    """
    self.seconds.update(seconds)
    if runtime.is_main_process():
      _drop_later_lines(self._workdir / "metrics.jsonl", first_step, unscored)
      with self._or_no_tensorboard():
        self._tensorboard = _tensorboard_writer(self._workdir / "tensorboard")

  @contextlib.contextmanager
  def stage(self, name: str, less: str = "") -> Iterator[None]:
    """Adds the time of the block to `seconds[name]`, without the time that stage `less` took in it."""
    start, before = time.perf_counter(), self.seconds[less]
    try:
      yield
    finally:
      self.seconds[name] += time.perf_counter() - start - (self.seconds[less] - before)

  def scalars(self, step: int, values: dict[str, float]) -> None:
    """Writes one line of metrics.jsonl, and the same to TensorBoard if it is installed."""
    if not runtime.is_main_process():
      return
    line = {"step": step, "time": round(time.time(), 3), **values}
    path = self._workdir / "metrics.jsonl"
    with atomic.writing(path, "the same command goes on from the newest checkpoint"), path.open("a") as file:
      file.write(json.dumps(line) + "\n")
    if self._tensorboard:
      with self._or_no_tensorboard():
        for name, value in values.items():
          self._tensorboard.add_scalar(name, value, step)

  def stage_summary(self) -> str:
    """Returns one line such as 'time: prepare 2.1 s · train 93.0 s ... · peak memory 1.4 GB'."""
    parts = [f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items() if seconds >= 0.05]
    peaks = [f"{bytes_ / 1e9:.2f} GB {where}" for where, bytes_ in runtime.peak_memory().items()]
    return "time: " + " · ".join(parts) + " · peak memory " + ", ".join(peaks)

  def close(self) -> None:
    if self._tensorboard:
      with self._or_no_tensorboard():
        self._tensorboard.close()

  @contextlib.contextmanager
  def _or_no_tensorboard(self) -> Iterator[None]:
    """Stops writing for TensorBoard if its files cannot be written; the training goes on."""
    try:
      yield
    except OSError as error:
      self._tensorboard = None
      say(f"{self._workdir}: stopped writing TensorBoard files ({error.strerror or error})")


def _drop_later_lines(path: pathlib.Path, first_step: int, unscored: bool) -> None:
  if not path.exists():
    return
  earlier = []
  for line in path.read_text().splitlines():
    with contextlib.suppress(ValueError, TypeError, KeyError):  # a line cut short by a kill, or a foreign one
      reading = json.loads(line)
      is_validation = any(name.startswith("eval/") for name in reading)
      comes_again = unscored and is_validation and reading["step"] == first_step
      if reading["step"] <= first_step and not comes_again:
        earlier.append(line + "\n")
  atomic.write_text(path, "".join(earlier))


def _tensorboard_writer(folder: pathlib.Path) -> "Writer | None":
  try:
    from tensorboard.summary import Writer
  except ImportError:
    return None
  return Writer(str(folder))
