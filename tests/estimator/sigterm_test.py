"""SIGTERM to a program that calls XMCClassifier.fit: the program decides, and nothing is left behind."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests import command_lines

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = """
import os, signal, sys
import made_texts
from xmc_jax.training import loop

def own(*_):
  print("own handler")
  sys.exit(7)

original, done = loop.TrainStep.__call__, []

def step(self, *args):
  done.append(0)
  if len(done) == 3:
    os.kill(os.getpid(), signal.SIGTERM)
  return original(self, *args)

loop.TrainStep.__call__ = step
if sys.argv[1] == "own":
  signal.signal(signal.SIGTERM, own)
made_texts.estimator(num_epochs=100_000, verbose=1).fit(*made_texts.make())
"""


@pytest.mark.slow
def test_sigterm_ends_fit_and_not_the_clean_up(tmp_path):
  """The exit status is not that of success; a handler of the program comes first."""
  paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "estimator")])
  begun = {}
  for handler in ("default", "own"):
    (tmp_path / handler).mkdir()
    environment = {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(tmp_path / handler)}
    command = [sys.executable, "-c", PROGRAM, handler]
    begun[handler] = subprocess.Popen(command, env=environment, **command_lines.PIPES)
  try:
    for handler, code, printed in (("default", 128 + signal.SIGTERM, ""), ("own", 7, "own handler\n")):
      out, err = begun[handler].communicate(timeout=120)
      assert (begun[handler].returncode, out) == (code, printed), err
      assert not list((tmp_path / handler).glob("xmc_jax-*"))
      assert "goes on" not in err and ("stopped at step" in err) == (handler == "default")
  finally:
    for process in begun.values():
      process.kill()
      process.communicate()
