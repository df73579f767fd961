"""Command lines that are read in the tests' own process, whose flags stay as they were."""

import contextlib
import sys
import warnings
from unittest import mock

from absl import flags


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
