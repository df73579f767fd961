"""Opens the parameters in a run's folder: the newest, the best, and those trained on all rows."""

import pathlib

import ml_collections

from xmc_jax.errors import UserError
from xmc_jax.storage import run_folder
from xmc_jax.storage.checkpoints import StepFolder


class SavedSteps:
  """Reads the folders of steps of one run.

  Attributes:
    newest: the newest steps, which a training continues from.
    best: the parameters with the best validation score.
    refitted: the parameters of the training on all rows (`train.refit`).
  """

  def __init__(self, workdir: pathlib.Path, config: ml_collections.ConfigDict):
    self._workdir, self._refits = workdir, config.train.refit
    self.newest = StepFolder(workdir / run_folder.NEWEST, read_only=True)
    self.best = StepFolder(workdir / run_folder.BEST, read_only=True)
    self.refitted = StepFolder(workdir / run_folder.REFIT / run_folder.BEST, read_only=True)

  def is_refitted(self) -> bool:
    """Returns whether the training on all rows has ended."""
    return self._refits and self.refitted.latest_valid() is not None

  def to_use(self, last: bool = False) -> tuple[StepFolder, int]:
    """Returns the step to use: that of the training on all rows, else the best, else the newest.

    Args:
      last: the newest step in any case.

    Returns:
      `(folder, step)`.

    Raises:
      UserError: nothing was saved yet, or every step is damaged.
    """
    better = [] if last else [*[self.refitted] * self._refits, self.best]
    for folder in (*better, self.newest):
      if (step := folder.latest_valid()) is not None:
        return folder, step
    if run_folder.has_checkpoints(self._workdir):
      raise UserError(f"{self._workdir}: every checkpoint is damaged; train anew with another --workdir")
    raise UserError(f"{self._workdir}: no checkpoint yet; run --mode=train with this --workdir first")
