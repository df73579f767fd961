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
# Tests that run in the background ignore Ctrl-C, and so would what they start.
_HEEDFUL = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("xmc_jax.main", run_name="__main__", alter_sys=True)
"""


def started(arguments, folder: pathlib.Path) -> subprocess.Popen:
  """A child that heeds Ctrl-C, begun in this folder; what it says goes into pipes."""
  return subprocess.Popen(
    [sys.executable, "-c", _HEEDFUL, *arguments],
    cwd=folder,
    env={**os.environ, "PYTHONPATH": str(_ROOT)},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


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
