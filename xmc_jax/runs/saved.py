"""Opens the parameters in a run's folder: the newest, the best, and those trained on all rows."""

import pathlib

import ml_collections

from xmc_jax.errors import UserError
from xmc_jax.storage import run_folder
from xmc_jax.storage.checkpoints import StepFolder


class SavedSteps:
  """Opens the folders of steps of one run.

  Args:
    workdir: the run's folder.
    config: the run's config.
  """

  def __init__(self, workdir: pathlib.Path, config: ml_collections.ConfigDict):
    self._workdir, self._config = workdir, config

  def checkpoints(self, read_only: bool = False) -> StepFolder:
    """Opens the newest steps, which a training continues from."""
    return StepFolder(
      self._workdir / run_folder.NEWEST, keep=self._config.checkpoint.keep, read_only=read_only
    )

  def best(self, read_only: bool = False) -> StepFolder:
    """Opens the parameters with the best validation score."""
    return StepFolder(self._workdir / run_folder.BEST, keep=1, read_only=read_only)

  def refitted(self, read_only: bool = False) -> StepFolder:
    """Opens the parameters of the training on all rows (`train.refit`)."""
    return StepFolder(self._workdir / run_folder.REFIT / run_folder.BEST, keep=1, read_only=read_only)

  def is_refitted(self) -> bool:
    """Returns whether the training on all rows has ended."""
    return self._config.train.refit and self.refitted(read_only=True).latest_valid() is not None

  def to_use(self, last: bool = False) -> tuple[StepFolder, int]:
    """Opens the step to use: that of the training on all rows, else the best, else the newest.

    Args:
      last: open the newest step in any case.

    Returns:
      `(folder, step)`.

    Raises:
      UserError: nothing was saved yet, or every step is damaged.
    """
    better = () if last else (*[self.refitted] * self._config.train.refit, self.best)
    for opened in (*better, self.checkpoints):
      folder = opened(read_only=True)
      if (step := folder.latest_valid()) is not None:
        return folder, step
    if run_folder.has_checkpoints(self._workdir):
      raise UserError(f"{self._workdir}: every checkpoint is damaged; train anew with another --workdir")
    raise UserError(f"{self._workdir}: no checkpoint yet; run --mode=train with this --workdir first")
