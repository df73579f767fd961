"""Runs Python in a process in which some libraries cannot be imported, as if they were not installed."""

import os
import pathlib
import subprocess
import sys

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
  return subprocess.run(
    [sys.executable, "-c", _BLOCKER.format(blocked=blocked) + code, *map(str, arguments)],
    cwd=folder,
    env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    text=True,
    encoding="utf-8",
    capture_output=True,
    timeout=300,
  )
