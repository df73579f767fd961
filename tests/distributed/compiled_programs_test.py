"""Tests that kept programs survive a kill, and never stop a run."""

import os
import signal
import subprocess
import sys
import zlib
from unittest import mock

import jax
import pytest

from xmc_jax.distributed import compiled_programs

_COMPILES = """
import pathlib, resource, signal, sys
import jax
from xmc_jax.distributed import compiled_programs
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
compiled_programs.keep(pathlib.Path(sys.argv[1]))
if sys.argv[2] == "dies":  # at the 301st byte of a file
  signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
jax.jit(lambda x: x * 2 + 1)(3.0)
"""


def compiles(folder, how: str) -> int:
  """Compiles one program in a process of its own, where a warning is an error; returns its exit code."""
  command = [sys.executable, "-W", "error::UserWarning", "-c", _COMPILES, str(folder), how]
  own = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")
  env = {key: value for key, value in os.environ.items() if key not in own}
  nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}  # the limit is theirs, too
  return subprocess.run(command, env=env, timeout=120, **nowhere).returncode


@pytest.fixture
def kept():
  """Returns where JAX keeps programs, which is nowhere at first."""
  before = jax.config.jax_compilation_cache_dir
  jax.config.update("jax_compilation_cache_dir", None)
  yield lambda: jax.config.jax_compilation_cache_dir
  jax.config.update("jax_compilation_cache_dir", before)


def test_a_program_that_a_killed_process_wrote_half_of_is_written_again(tmp_path):
  assert compiles(tmp_path, "dies") == -signal.SIGXFSZ
  (program,) = tmp_path.glob("jit_*-cache")
  assert program.stat().st_size == 300
  assert compiles(tmp_path, "well") == 0
  written = program.stat()
  assert written.st_size > 300
  assert compiles(tmp_path, "well") == 0
  assert program.stat().st_mtime_ns == written.st_mtime_ns  # read, and not written again


def test_partial_programs_go_and_nothing_else(tmp_path, kept):
  folder = tmp_path / "a" / "compiled"
  compiled_programs.keep(folder)
  assert kept() == str(folder)
  packed = zlib.compress(bytes(10_000))
  programs = {
    "whole": packed,
    "cut": packed[:-3],
    "empty": b"",
    "other": b"\x28\xb5\x2f\xfdwhat zstandard packed",
  }
  for name, data in programs.items():
    (folder / f"jit_{name}-cache").write_bytes(data)
  (folder / "notes").write_bytes(b"x")
  (folder / "jit_checked_before-cache").write_bytes(b"would be deleted if it were read again")
  os.utime(folder / "jit_checked_before-cache", (1, 1))
  compiled_programs.keep(folder)
  left = {path.name for path in folder.iterdir()}
  assert left == {"jit_whole-cache", "jit_other-cache", "jit_checked_before-cache", "notes", ".checked"}


def test_a_folder_that_cannot_be_made_costs_no_run(tmp_path, kept):
  (tmp_path / "file").write_bytes(b"")
  compiled_programs.keep(tmp_path / "file" / "compiled")
  assert kept() is None


def test_a_folder_that_cannot_be_written_is_read(tmp_path, kept, monkeypatch):
  monkeypatch.setattr(type(tmp_path), "touch", mock.Mock(side_effect=PermissionError))
  compiled_programs.keep(tmp_path)
  assert kept() == str(tmp_path)


def test_the_folder_that_jax_was_told_stays(tmp_path, kept):
  jax.config.update("jax_compilation_cache_dir", str(tmp_path / "told"))
  compiled_programs.keep(tmp_path / "other")
  assert kept() == str(tmp_path / "told") and not (tmp_path / "other").exists()
