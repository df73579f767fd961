"""Keeps one folder of checkpoints: writes steps whole, finds valid ones, and sets damaged ones aside."""

import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from xmc_jax.console import say
from xmc_jax.distributed import runtime
from xmc_jax.errors import UserError
from xmc_jax.storage import atomic, checksums
from xmc_jax.storage.checkpoints import arrays
from xmc_jax.types import PyTree


class StepFolder:
  """Keeps the steps of one folder, each in its own subfolder.

  A step is written into `unfinished-STEP`, arrays first and its manifest last; then this is renamed. Only the
  main process reads and changes the folder; it tells the others.

  Args:
    folder: made if it does not exist.
    keep: how many steps stay; older ones are deleted after a newer one is finished.
    read_only: change nothing in the folder: another process may be saving into it.
  """

  def __init__(self, folder: pathlib.Path, *, keep: int = 2, read_only: bool = False):
    self.folder = folder.absolute()
    self._keep = keep
    self._read_only = read_only
    if not read_only:
      with atomic.writing(self.folder):
        runtime.on_main_process(self._clean_up, "cleaned up steps")

  def path_of(self, step: int) -> pathlib.Path:
    return self.folder / str(step)

  def finished(self) -> list[int]:
    """Returns the finished steps in order, as this process sees them."""
    return sorted(int(path.name) for path in self.folder.glob("[0-9]*") if path.name.isdecimal())

  def latest(self) -> int | None:
    """Returns the newest finished step, or None."""
    return max(self.finished(), default=None)

  def last_good(self) -> str:
    """Names `latest`, for a message."""
    last = self.latest()
    return "no checkpoint was saved yet" if last is None else f"the last good checkpoint is step {last}"

  def latest_valid(self) -> int | None:
    """Returns the newest finished step whose files have their checksums, or None; reads them all.

    Prints a line for each damaged step and, if this process may write, renames it to `damaged-STEP`.
    """
    step = _from_main(self._latest_valid)
    return None if step < 0 else step

  def has_damaged(self) -> bool:
    """Returns whether a damaged step was ever set aside in this folder."""
    return bool(_from_main(lambda: any(self.folder.glob("damaged-*"))))

  def save(self, step: int, state: PyTree, refreshed: PyTree, record: Mapping[str, Any]) -> None:
    """Saves a whole step or nothing; if the step is finished already, updates only its record.

    Raises:
      UserError: the disk cannot write it; the message names the last good step.
    """
    path, unfinished = self.path_of(step), self.folder / f"unfinished-{step}"
    if _from_main(lambda: step in self.finished()):
      runtime.on_main_process(lambda: checksums.update_record(path, record), "updated record")
      return

    def finish() -> None:
      checksums.write_manifest(unfinished, record)
      unfinished.rename(path)
      atomic.flush(self.folder)

    try:
      atomic.check_room(self.folder, _num_bytes((state, refreshed)), f"the checkpoint of step {step}")
      with atomic.writing(path):
        arrays.write(unfinished, state, refreshed)
        runtime.on_main_process(finish, "finished step")
    except (UserError, ValueError) as error:
      if runtime.is_main_process():
        self._remove("unfinished-*")  # as of a full disk
      if not isinstance(error, UserError):
        raise
      raise UserError(f"{error}; {self.last_good()}") from None
    runtime.on_main_process(lambda: self._delete(self.finished()[: -self._keep]), "deleted steps")

  def restore(self, step: int, state: PyTree) -> tuple[PyTree, PyTree, dict[str, Any]]:
    """Reads `(state, refreshed, record)` of one step; see `arrays.restore`."""
    state, refreshed = arrays.restore(self.path_of(step), state)
    with arrays.readable(self.path_of(step)):
      return state, refreshed, checksums.read_record(self.path_of(step))

  def restore_trained(
    self, step: int, rules: tuple[tuple[str, tuple], ...], devices: jax.sharding.Mesh
  ) -> tuple[PyTree, PyTree]:
    """Reads only `(params, extra_state)` of one step; see `arrays.restore_trained`."""
    return arrays.restore_trained(self.path_of(step), rules, devices)

  def delete_after(self, step: int) -> None:
    """Deletes steps after this one, which a killed process left: the run goes on from this one."""
    runtime.on_main_process(
      lambda: self._delete([later for later in self.finished() if later > step]), "deleted steps"
    )

  def _latest_valid(self) -> int:
    damaged = set()
    while left := [step for step in self.finished() if step not in damaged]:
      step = left[-1]
      if not (why := checksums.why_damaged(self.path_of(step))):
        return step
      if not self.path_of(step).exists():
        continue  # the training process has deleted it meanwhile
      damaged.add(step)
      rest = f"step {left[-2]} is next" if len(left) > 1 else "there is no other"
      what = "left out" if self._read_only else f"set aside as {self._set_aside(step, 'damaged').name}"
      say(f"{self.path_of(step)}: this checkpoint is damaged ({why}); {what}, {rest}")
    return -1

  def _set_aside(self, step: int, why: str) -> pathlib.Path:
    aside = self.folder / f"{why}-{step}"
    shutil.rmtree(aside, ignore_errors=True)
    return self.path_of(step).rename(aside)

  def _delete(self, steps: list[int]) -> None:
    """Renames before deleting, so that a partial delete is never taken for a checkpoint."""
    for step in steps:
      shutil.rmtree(self._set_aside(step, "deleted"), ignore_errors=True)

  def _remove(self, pattern: str) -> None:
    for path in self.folder.glob(pattern):
      shutil.rmtree(path, ignore_errors=True)

  def _clean_up(self) -> None:
    """Makes the folder; removes what killed processes left half written or half deleted."""
    self.folder.mkdir(parents=True, exist_ok=True)
    self._remove("unfinished-*")
    self._remove("deleted-*")


def _from_main(look: Callable[[], int]) -> int:
  """Returns the main process's result, on every process."""
  return int(runtime.from_main_process(np.array(look() if runtime.is_main_process() else 0, np.int32)))


def _num_bytes(tree: PyTree) -> int:
  return sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(tree))
