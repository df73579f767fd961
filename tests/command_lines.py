"""Command lines: read in the tests' own process, whose flags stay as they were, or as children."""

import contextlib
import os
import pathlib
import subprocess
import sys
import warnings
from unittest import mock

from absl import flags

_ROOT = pathlib.Path(__file__).parents[1]
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
# Tests that run in the background ignore Ctrl-C, and so would what they start.
_HEEDFUL = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("xmc_jax.main", run_name="__main__", alter_sys=True)
"""


def run(*command, folder: pathlib.Path = _ROOT, **environment) -> subprocess.CompletedProcess[str]:
  """Runs a command in a folder to its end, with these changes to the environment, and keeps what it says."""
  changed = {name: str(value) for name, value in ({"PYTHONPATH": _ROOT} | environment).items()}
  options = {"encoding": "utf-8", "capture_output": True, "timeout": 300}
  return subprocess.run(list(map(str, command)), cwd=folder, env={**os.environ, **changed}, **options)


def started(arguments, folder: pathlib.Path) -> subprocess.Popen:
  """A child that heeds Ctrl-C, begun in this folder; what it says goes into pipes."""
  command = [sys.executable, "-c", _HEEDFUL, *arguments]
  return subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(_ROOT)}, **PIPES)


@contextlib.contextmanager
def given(*arguments):
  """Inside, `sys.argv`, where ml_collections looks for overrides, is a command with these arguments."""
  before = {name: flags.FLAGS[name].default for name in flags.FLAGS}
  argv = ["xmc_jax", *map(str, arguments)]
  try:
    with mock.patch.object(sys, "argv", argv), warnings.catch_warnings():
      # ml_collections loads config files in a way that Python means to drop.
      warnings.filterwarnings("ignore", "the load_module", DeprecationWarning)
      yield argv
  finally:
    for name in set(flags.FLAGS) - set(before):
      delattr(flags.FLAGS, name)
    for name, default in before.items():
      flags.FLAGS[name].using_default_value, flags.FLAGS[name].present = True, 0
      flags.FLAGS[name].value = default
