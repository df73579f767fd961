"""Compiled programs on disk: whole after a kill, limited, and no condition of a run."""

import os
import signal
import subprocess
import sys

import filelock
import jax
import pytest

from xmc_jax.distributed import compiled_programs

_COMPILES = """
import pathlib, resource, signal, sys
import jax
from xmc_jax.distributed import compiled_programs
compiled_programs.keep(pathlib.Path(sys.argv[1]), least_seconds=0.0)
if sys.argv[2] == "dies":  # at the 301st byte of a file
  signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
  resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
print(jax.jit(lambda x: x * 2 + 1)(3.0))
"""
_SETTINGS = (
  "jax_compilation_cache_dir",
  "jax_persistent_cache_min_compile_time_secs",
  "jax_compilation_cache_max_size",
)


def compiles(folder, how: str) -> int:
  """Compiles one program in a process of its own, where a warning is an error; returns its exit code."""
  command = [sys.executable, "-W", "error::UserWarning", "-c", _COMPILES, str(folder), how]
  env = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
  return subprocess.run(command, env=env, timeout=120).returncode


@pytest.fixture
def settings():
  """What `keep` sets in this process; it is undone afterwards."""
  before = {name: getattr(jax.config, name) for name in _SETTINGS}
  jax.config.update("jax_compilation_cache_max_size", -1)
  yield lambda: [getattr(jax.config, name) for name in _SETTINGS]
  for name, value in before.items():
    jax.config.update(name, value)


def test_a_program_that_a_killed_process_wrote_half_of_is_written_again(tmp_path):
  assert compiles(tmp_path, "dies") == -signal.SIGXFSZ
  (program,) = tmp_path.glob("jit_*-cache")
  assert program.stat().st_size == 300
  assert compiles(tmp_path, "well") == 0
  written = program.stat()
  assert written.st_size > 300
  assert compiles(tmp_path, "well") == 0
  assert program.stat().st_mtime_ns == written.st_mtime_ns  # read, and not written again


def test_the_folder_has_a_limit_and_keeps_whole_programs(tmp_path, settings):
  folder = tmp_path / "a" / "compiled"
  compiled_programs.keep(folder, 0.5)
  assert settings() == [str(folder), 0.5, compiled_programs.MOST_BYTES]
  for name in ("jit_a-1-cache", "jit_a-1-atime", "jit_b-2-cache", "other"):
    (folder / name).write_bytes(b"x")
  compiled_programs.keep(folder)
  left = {path.name for path in folder.iterdir()}
  assert left - {".lockfile"} == {"jit_a-1-cache", "jit_a-1-atime", "other"}


def test_without_locks_there_is_no_limit(tmp_path, settings, monkeypatch):
  def refuses(*_, **__):
    raise NotImplementedError("FileSystem does not appear to support flock")

  monkeypatch.setattr(filelock.FileLock, "acquire", refuses)
  (tmp_path / "jit_b-2-cache").write_bytes(b"x")
  compiled_programs.keep(tmp_path)
  assert settings() == [str(tmp_path), 1.0, -1]
  assert (tmp_path / "jit_b-2-cache").exists()


def test_a_lock_that_another_holds_deletes_nothing(tmp_path, settings, monkeypatch):
  monkeypatch.setattr(compiled_programs, "_SECONDS_TO_LOCK", 0.01)
  (tmp_path / "jit_b-2-cache").write_bytes(b"x")  # being written now
  with filelock.FileLock(tmp_path / ".lockfile"):
    compiled_programs.keep(tmp_path)
  assert settings() == [str(tmp_path), 1.0, compiled_programs.MOST_BYTES]
  assert (tmp_path / "jit_b-2-cache").exists()


def test_a_folder_that_cannot_be_made_costs_no_run(tmp_path, settings):
  before = settings()
  (tmp_path / "file").write_bytes(b"")
  compiled_programs.keep(tmp_path / "file" / "compiled")
  assert settings() == before
