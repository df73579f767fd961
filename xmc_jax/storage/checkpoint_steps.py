"""The folders of a training's steps: which are finished and whole, and what becomes of the others.

The main process looks and acts, and all processes of a run get its answer.
"""

import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from xmc_jax.console import say
from xmc_jax.distributed import runtime
from xmc_jax.storage import checksums


class Steps:
  """The steps of one folder, each in a folder of its own that `digests` seals.

  Args:
    folder: need not be there yet.
    read_only: leave all as it is: somebody else may be saving.
  """

  def __init__(self, folder: pathlib.Path, read_only: bool):
    self._folder, self._read_only = folder, read_only
    if not read_only:
      self._clean_up()

  def of(self, step: int) -> pathlib.Path:
    return self._folder / str(step)

  def finished(self) -> list[int]:
    """The finished steps in order, as this process sees them."""
    return sorted(step for step in self._all() if checksums.is_sealed(self.of(step)))

  def stands(self, step: int) -> bool:
    """Whether a step is finished; the same on every process."""
    return bool(_agreed(lambda: step in self.finished()))

  def usable(self) -> int | None:
    """The newest finished step whose files are what they were, or None; reads them all.

    Of damaged ones a line is said, and where this process may write they are renamed to `damaged-STEP`.
    """
    found = _agreed(self._usable)
    return None if found < 0 else found

  def has_damaged(self) -> bool:
    """Whether a step was ever set aside here."""
    return bool(_agreed(lambda: any(self._folder.glob("damaged-*"))))

  def seal(self, step: int, record: Mapping[str, Any]) -> None:
    if runtime.is_main_process():
      checksums.seal(self.of(step), record)
    runtime.barrier("sealed step")

  def amend(self, step: int, record: Mapping[str, Any]) -> None:
    """Gives a finished step another record."""
    if runtime.is_main_process():
      checksums.amend(self.of(step), record)
    runtime.barrier("amended step")

  def delete(self, choose: Callable[[list[int]], list[int]]) -> None:
    """Deletes those finished steps that `choose` says, under another name: a kill may leave the half."""
    if runtime.is_main_process():
      for step in choose(self.finished()):
        doomed = self.of(step).rename(self._folder / f"deleted-{step}")
        shutil.rmtree(doomed, ignore_errors=True)
    runtime.barrier("deleted steps")

  def remove(self, pattern: str) -> None:
    """Removes what is no step."""
    if runtime.is_main_process():
      for path in self._folder.glob(pattern):
        shutil.rmtree(path, ignore_errors=True)

  def _all(self) -> list[int]:
    return [int(path.name) for path in self._folder.glob("[0-9]*") if path.name.isdecimal()]

  def _usable(self) -> int:
    damaged = set()
    while left := [step for step in self.finished() if step not in damaged]:
      step = left[-1]
      if not (why := checksums.why_broken(self.of(step))):
        return step
      if not checksums.is_sealed(self.of(step)):
        continue  # whoever trains here has deleted it meanwhile
      damaged.add(step)
      rest = f"step {left[-2]} is next" if len(left) > 1 else "there is no other"
      what = "left out" if self._read_only else f"set aside as {self._set_aside(step, 'damaged').name}"
      say(f"{self.of(step)}: this checkpoint is damaged ({why}); {what}, {rest}")
    return -1

  def _set_aside(self, step: int, why: str) -> pathlib.Path:
    aside = self._folder / f"{why}-{step}"
    shutil.rmtree(aside, ignore_errors=True)
    return self.of(step).rename(aside)

  def _clean_up(self) -> None:
    """Removes what killed processes left half deleted; a step without a seal is set aside."""
    self.remove("deleted-*")
    if runtime.is_main_process():
      unsealed = sorted(set(self._all()) - set(self.finished()))
      if unsealed:  # of an earlier start
        self.remove("unsealed-*")
      for step in unsealed:
        aside = self._set_aside(step, "unsealed")
        say(f"{self.of(step)}: this checkpoint was never finished; set aside as {aside.name}")
    runtime.barrier("cleaned up steps")


def _agreed(look: Callable[[], int]) -> int:
  """What the main process sees, on every process."""
  return int(runtime.from_main_process(np.int32(look() if runtime.is_main_process() else 0)))
