"""Kills of a training, as they look from within its process and from outside."""

import contextlib
import itertools
import pathlib

import pytest

from xmc_jax.storage.checkpoints import StepFolder

# The command line. After step $STOP process $WHO, or each, says so and sleeps $SLOW seconds, or gets $SIGNAL.
DRIVER = """
import os, signal, sys, time
from xmc_jax import main
from xmc_jax.training import loop

stop, original = int(os.environ.get("STOP", 0)), loop.TrainStep.__call__
own = os.environ.get("JAX_PROCESS_ID")

def step(self, state, *args):
  found = original(self, state, *args)
  if stop and int(found[0].step) == stop and os.environ.get("WHO", own) == own:
    if "SLOW" in os.environ:
      print("step", stop, file=sys.stderr, flush=True)
      time.sleep(float(os.environ["SLOW"]))
    else:
      os.kill(os.getpid(), int(os.environ.get("SIGNAL", signal.SIGKILL)))
  return found

loop.TrainStep.__call__ = step
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore Ctrl-C
main.cli()
"""


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
