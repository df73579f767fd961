"""Keeps compiled programs on disk for the next start: a limited amount, and never half of one."""

import contextlib
import pathlib

import filelock
import jax

MOST_BYTES = 4 << 30  # of all programs; the one that was used longest ago goes first
_SECONDS_TO_LOCK = 10
# The names of JAX's cache: a program, the time when it was last used, written after it, and the lock on both.
_PROGRAM, _LAST_USED, _LOCK = "-cache", "-atime", ".lockfile"


def keep(folder: pathlib.Path, least_seconds: float = 1.0) -> None:
  """Lets JAX keep compiled programs in a folder, and deletes what a killed process wrote half of.

  Processes that share the folder take turns. Without locks in its file system, all programs are kept, and one
  that is cut off is compiled at each start, with a warning of JAX's. A folder that cannot be written costs
  compile time, not the run.

  Args:
    folder: made if it is not there.
    least_seconds: programs that compile faster are not kept.
  """
  with contextlib.suppress(OSError):
    folder.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", least_seconds)
    if _cleaned(folder):
      jax.config.update("jax_compilation_cache_max_size", MOST_BYTES)


def _cleaned(folder: pathlib.Path) -> bool:
  """Deletes unfinished programs unless another process holds the lock; returns whether there are locks."""
  try:
    with filelock.FileLock(folder / _LOCK, timeout=_SECONDS_TO_LOCK):
      names = {path.name for path in folder.iterdir()}
      for name in names:
        if name.endswith(_PROGRAM) and name.removesuffix(_PROGRAM) + _LAST_USED not in names:
          (folder / name).unlink(missing_ok=True)
  except filelock.Timeout:
    return True
  except (OSError, NotImplementedError):
    return False
  return True
