"""Runs Python in a process in which some libraries cannot be imported, as if they were not installed."""

import pathlib
import subprocess
import sys

from tests import command_lines

ROOT = pathlib.Path(__file__).parents[1]
_BLOCKER = """
import runpy, sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
class Finder(PathFinder):
  @classmethod
  def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in {blocked} else super().find_spec(name, path, target)
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, Finder]
"""
COMMAND = 'runpy.run_module("xmc_jax.main", run_name="__main__", alter_sys=True)'


def run(blocked: set[str], code: str, *arguments, folder=ROOT, **environment) -> subprocess.CompletedProcess:
  """Runs code without the libraries of these import names; `COMMAND` is xmc_jax's command line."""
  code = _BLOCKER.format(blocked=blocked) + code
  return command_lines.run(sys.executable, "-c", code, *arguments, folder=folder, **environment)
