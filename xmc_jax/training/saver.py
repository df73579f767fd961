"""What a training leaves to go on from: checkpoints, the best parameters, and the host's record in both."""

from typing import Any

import jax

from xmc_jax.config import renamed
from xmc_jax.console import say
from xmc_jax.errors import UserError
from xmc_jax.runs.run import Run
from xmc_jax.storage import atomic
from xmc_jax.types import PyTree, TrainState

# The host's part of a checkpoint, at step 0.
_NEW_RECORD = {
  "best": None,
  "best_step": None,
  "evals_since_best": 0,
  "stopped": False,  # validation has not risen for long enough
  "unscored": False,  # we had to leave before this step was validated
  "skipped": 0,  # steps whose loss or gradient was not finite
  "seconds": {},
}


class Saves:
  """The two folders of checkpoints of a run that is trained.

  The best parameters are always those of a checkpoint, which comes first: a kill between the two, or a run
  that goes on from further back, never leaves a best that the run's own record does not know.

  Attributes:
    checkpoints, best: the folders.
    host: the host's record.
  """

  def __init__(self, run: Run):
    self.checkpoints, self.best = run.checkpoints(), run.best()
    self.host: dict[str, Any] = dict(_NEW_RECORD)

  def restore(self, step: int | None, state: TrainState) -> tuple[TrainState, PyTree]:
    """`(state, fresh)` of a step, or of none; drops what was saved after it.

    Raises:
      UserError: no step is left to go on from, and beginning anew would delete the best parameters.
    """
    fresh = {}
    if step is not None:
      state, fresh, host = self.checkpoints.restore(step, state)
      fresh = renamed.in_refreshes(fresh)
      self.host.update(host)
    elif self.checkpoints.steps.has_damaged() and self.best.usable() is not None:
      folder = self.checkpoints.folder.parent
      raise UserError(
        f"{folder}: every checkpoint is damaged; the best parameters so far are whole, for --mode=evaluate "
        "and predict; to train anew give --workdir=ANOTHER_FOLDER, or delete this one"
      )
    self.checkpoints.drop_after(step or 0)
    self.best.drop_after(step or 0)
    self._mend_best(state)
    return state, fresh

  def save(self, state: TrainState, fresh: PyTree, seconds: dict[str, float]) -> None:
    """A checkpoint of this step; where it has one already, the record alone."""
    self.checkpoints.save(int(state.step), state, fresh, {**self.host, "seconds": dict(seconds)})

  def keep_best(self, state: TrainState) -> None:
    """The parameters that the record calls the best so far."""
    trained = {"params": state.params, "aux": state.aux}
    self.best.save(self.host["best_step"], trained, {}, {"best": self.host["best"]})

  def check_room(self, state: TrainState) -> None:
    """Refuses to begin what could not be saved: a checkpoint, and its parameters as the best so far."""
    num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves((state, state.params, state.aux)))
    atomic.check_room(self.checkpoints.folder.parent, num_bytes, "a checkpoint with the best parameters")

  def close(self) -> None:
    self.checkpoints.close()
    self.best.close()

  def _mend_best(self, state: TrainState) -> None:
    """Makes good what a kill between two saves, or damage, did to the best parameters."""
    wanted = self.host["best_step"]
    if wanted is None or self.best.usable() == wanted:
      return
    if wanted == int(state.step):
      self.keep_best(state)
      return
    say(f"the best parameters so far, of step {wanted:,}, are gone; the best from here on will be kept")
    self.host.update(best=None, best_step=None)
