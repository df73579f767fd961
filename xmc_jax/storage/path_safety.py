"""Keeps writes inside a run's folder, which the user may have got from somebody else."""

import os
import pathlib

from xmc_jax.errors import UserError

_READ_ONLY = ("data",)  # replaced as a whole, never written into


def check(workdir: pathlib.Path) -> None:
  """Refuses a run's folder with a link that leads out of it; the folder itself may be a link.

  Raises:
    UserError: there is such a link; the message names it.
  """
  home = workdir.resolve()
  for folder, folders, files in os.walk(workdir):  # it follows no links
    if pathlib.Path(folder) == workdir:
      folders[:] = [name for name in folders if name not in _READ_ONLY]
    for path in (pathlib.Path(folder, name) for name in sorted((*folders, *files))):
      if path.is_symlink() and not (target := pathlib.Path(os.path.realpath(path))).is_relative_to(home):
        raise UserError(
          f"{path} is a link that leads out of the run's folder, to {target}, and a command may write there; "
          "replace it by what it points to, or make the whole folder a link"
        )
