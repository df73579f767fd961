"""Keeps compiled programs on disk for the next start, and deletes what a killed process wrote half of."""

import contextlib
import os
import pathlib
import zlib

import jax

_PROGRAMS, _CHECKED = "*-cache", ".checked"  # what JAX's cache calls a program; our mark of the last check
_ZSTANDARD = b"\x28\xb5\x2f\xfd"  # how a program begins that JAX packed with zstandard, if that is installed


def keep(folder: pathlib.Path) -> None:
  """Lets JAX keep compiled programs in a folder, after a check of those that were written since the last one.

  JAX would compile a partial program at every start, with a warning, and never replace it. A folder that
  cannot be written costs compile time, not the run.

  Args:
    folder: made if it is not there; the one that JAX was told before, as by `$JAX_COMPILATION_CACHE_DIR`,
      is taken instead.
  """
  folder = pathlib.Path(jax.config.jax_compilation_cache_dir or folder)  # type: ignore[attr-defined]
  with contextlib.suppress(OSError):
    folder.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    _delete_partial(folder)


def _delete_partial(folder: pathlib.Path) -> None:
  """Deletes partial programs. One that another process is writing may go, too: it is compiled once more."""
  mark, begun = folder / _CHECKED, folder / f"{_CHECKED}-{os.getpid()}"
  begun.touch()  # by the clock that stamps the programs, too
  since = mark.stat().st_mtime_ns if mark.exists() else 0
  for program in folder.glob(_PROGRAMS):
    with contextlib.suppress(OSError):  # another start deleted it, or it is another user's
      if program.stat().st_mtime_ns >= since and not _is_whole(program.read_bytes()):
        program.unlink()
  begun.replace(mark)


def _is_whole(program: bytes) -> bool:
  """Returns False for a zlib stream that is cut off or damaged; what zstandard packed is not checked."""
  if program.startswith(_ZSTANDARD):
    return True
  try:
    zlib.decompress(program)
  except zlib.error:
    return False
  return True
