"""Kills of a training as they look from within its process."""

import contextlib
import itertools
import pathlib

import pytest

from xmc_jax.storage.checkpoints import StepFolder


class Killed(BaseException):
  """What a kill looks like from within the process."""


@contextlib.contextmanager
def killed(owner, name: str, when=1):
  """Within, the first call of a function for which `when(*arguments)` holds is the last of the process.

  Args:
    owner, name: where the function is.
    when: a number counts calls.
  """
  original, calls = getattr(owner, name), itertools.count(1)

  def wrapped(*arguments, **named):
    if when(*arguments) if callable(when) else next(calls) == when:
      raise Killed
    return original(*arguments, **named)

  with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
    patch.setattr(owner, name, wrapped)
    yield


def newest_checkpoint(workdir: pathlib.Path) -> int | None:
  """Returns the step of a run's newest checkpoint."""
  return StepFolder(workdir / "checkpoints", read_only=True).latest()
