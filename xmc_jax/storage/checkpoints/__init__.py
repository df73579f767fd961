"""Saves and restores trainings on disk by `Checkpoints`; a `StepFolder` is one folder of steps.

A step's folder holds the whole state of a training at that step:

  checkpoints/1234/state/          parameters, optimiser, extra state: Orbax's files
  checkpoints/1234/refreshed/      results of refreshes, if there are any
  checkpoints/1234/manifest.json   the manifest: checksums of all files, and the training record
  best/1234/                       the same, but only the parameters
"""

import contextlib
import dataclasses
import pathlib
from typing import Any, cast

import jax

from xmc_jax.console import say
from xmc_jax.errors import UserError
from xmc_jax.storage import atomic, run_folder
from xmc_jax.storage.checkpoints.background import Background
from xmc_jax.storage.checkpoints.step_folder import StepFolder
from xmc_jax.types import PyTree, TrainState

__all__ = ["Checkpoints", "StepFolder", "TrainingRecord"]


@dataclasses.dataclass
class TrainingRecord:
  """Holds the part of a checkpoint that is JSON.

  Attributes:
    best: the best validation score so far; None before the first.
    best_step: the step with that score.
    evals_since_best: the number of validations since then.
    stopped: whether training stopped early, because the score has not risen for long enough or time was up.
    unscored: whether the training was stopped before this step was validated.
    skipped: steps that were left out because their loss or gradient was not finite.
    seconds: time by stage, of all processes up to the restored step.
  """

  best: float | None = None
  best_step: int | None = None
  evals_since_best: int = 0
  stopped: bool = False
  unscored: bool = False
  skipped: int = 0
  seconds: dict[str, float] = dataclasses.field(default_factory=dict)

  def add_score(self, step: int, score: float, patience: int) -> bool:
    """Notes the score of a step, where higher is better; returns whether it is the best so far.

    The training stops after `patience` scores that are no better; 0 never stops it.
    """
    self.unscored = False
    if self.best is None or score > self.best:
      self.best = score
      self.best_step = step
      self.evals_since_best = 0
      return True
    self.evals_since_best += 1
    self.stopped = self.stopped or (bool(patience) and self.evals_since_best >= patience)
    return False


class Checkpoints:
  """Keeps all that a training needs to go on: its newest steps, its best parameters, and its record in both.

  A step is always saved before its parameters are saved as the best. So the record knows the best parameters,
  even if a process is killed between the two, or a run goes on from an earlier step.

  Saves may run in the background, on a copy of the state in the host's memory. They stay in order, one begins
  when those before are on the disk, and an error is raised by the next save or by `finished`.

  Args:
    workdir: the run's folder; the steps are in `checkpoints/`, the best parameters in `best/`.
    keep: how many of the newest steps stay.
    in_background: whether saves run in the background, which only a single process can do.

  Attributes:
    record: the training's record, which `restore` reads and `save` writes.
  """

  def __init__(self, workdir: pathlib.Path, keep: int, in_background: bool = False):
    self._newest = StepFolder(workdir / run_folder.NEWEST, keep=keep)
    self._best = StepFolder(workdir / run_folder.BEST, keep=1)
    self.record = TrainingRecord()
    self._background = Background(in_background)

  def latest(self) -> int | None:
    """Returns the newest finished step, or None; waits for saves."""
    self._background.wait()
    return self._newest.latest()

  def latest_valid(self) -> int | None:
    """Returns the newest finished step that is not damaged, or None; see `StepFolder.latest_valid`."""
    return self._newest.latest_valid()

  def last_good(self) -> str:
    """Names the newest finished step, for a message; waits for saves, and prints a failure."""
    self._background.note_failure()
    return self._newest.last_good()

  def restore(self, step: int | None, state: TrainState) -> tuple[TrainState, PyTree]:
    """Reads `(state, refreshed)` and the record of a step, and deletes what was saved after it.

    Args:
      step: `latest_valid()`; None begins anew, from `state`.
      state: the arrays of step 0, or their shapes.

    Raises:
      UserError: every step is damaged, and beginning anew would delete the best parameters.
    """
    refreshed: dict[str, Any] = {}
    if step is not None:
      state, refreshed, record = self._newest.restore(step, state)
      self.record = TrainingRecord(**record)
    elif self._newest.has_damaged() and self._best.latest_valid() is not None:
      folder = self._newest.folder.parent
      raise UserError(
        f"{folder}: every checkpoint is damaged; the best parameters so far are whole, for --mode=evaluate "
        "and predict; to train anew give --workdir=ANOTHER_FOLDER, or delete this one"
      )
    self._newest.delete_after(step or 0)
    self._best.delete_after(step or 0)
    self._mend_best(state)
    return state, refreshed

  def save(self, state: TrainState, refreshed: PyTree, seconds: dict[str, float]) -> None:
    """Saves this step; if it is saved already, updates only its record."""
    self._background.wait()  # so that there is one copy of a state at a time
    step, record = int(state.step), {**dataclasses.asdict(self.record), "seconds": dict(seconds)}
    copied = self._copied(state)
    self._background.run(lambda: self._newest.save(step, copied, refreshed, record))

  def keep_best(self, state: TrainState) -> None:
    """Saves the parameters that the record calls the best so far."""
    trained = self._copied({"params": state.params, "extra_state": state.extra_state})
    step = cast(int, self.record.best_step)  # the record has one: `state` is of that step
    record = {"best": self.record.best}
    self._background.run(lambda: self._best.save(step, trained, {}, record))

  def finished(self) -> contextlib.AbstractContextManager[None]:
    """Waits for all saves when the block ends; then there are no more.

    Raises:
      UserError: one of them failed.
    """
    return self._background.finished()

  def check_room(self, state: TrainState) -> None:
    """Refuses a training if the disk has no room for a step and the best parameters."""
    num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves((state, state.params, state.extra_state)))
    atomic.check_room(self._newest.folder.parent, num_bytes, "a checkpoint with the best parameters")

  def _copied(self, tree: PyTree) -> PyTree:
    """Returns arrays that the next step does not overwrite, where they are written in the background."""
    return jax.device_get(tree) if self._background.in_thread else tree

  def _mend_best(self, state: TrainState) -> None:
    """Repairs the best parameters after damage, or after a kill between two saves."""
    best_step = self.record.best_step
    if best_step is None or self._best.latest_valid() == best_step:
      return
    if best_step == int(state.step):
      self.keep_best(state)
      self._background.wait()  # a run that has ended saves nothing more
      return
    say(f"the best parameters so far, of step {best_step:,}, are gone; the best from here on will be kept")
    self.record.best = self.record.best_step = None
