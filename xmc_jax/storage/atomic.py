"""Disks: room on them, asked for before something large is written; small files, written whole."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from xmc_jax.errors import UserError


def need(folder: Path, num_bytes: float, what: str) -> None:
  """Refuses what would not fit on a folder's disk.

  Args:
    folder: where it will be written; need not be there yet.
    num_bytes: its size, at most.
    what: what it is, for the message.

  Raises:
    UserError: less is free.
  """
  there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
  try:
    free = shutil.disk_usage(there).free
  except OSError:  # a disk that does not tell
    return
  if free < num_bytes:
    raise UserError(
      f"{folder}: {what} takes up to {_shown(num_bytes)}, and this disk has {_shown(free)} left; "
      "free some, or choose a folder on another"
    )


def write_text(path: Path, text: str) -> None:
  """Writes a small file whole or not at all: what was there before stays until then."""
  beside = path.with_name(f"{path.name}.tmp")
  beside.write_text(text, encoding="utf-8")
  beside.replace(path)


def lock(file: IO, what: str) -> None:
  """Keeps a second writer out until `file` is closed, where the disk has locks; a killed one lets go.

  Raises:
    UserError: another process writes `what`.
  """
  try:
    import fcntl

    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    raise UserError(f"{what}: another process writes here; wait for it, or give another place") from None
  except (ImportError, OSError):
    pass


def flush(path: Path) -> None:
  """Waits until a file, or a folder's list of files, is on the disk."""
  handle = os.open(path, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)


def is_plain_file(path: str | Path) -> bool:
  """Whether a path names a file that is there or will be; a pipe, a device, a link are written into."""
  return bool(str(path)) and not os.path.islink(path) and (os.path.isfile(path) or not os.path.exists(path))


def check_place(path: str) -> None:
  """Raises UserError where `written` could not begin."""
  if is_plain_file(path):
    with _refused(path):
      beside = _beside(path)
      beside.touch()
      beside.unlink()
  elif os.path.isdir(path):
    raise UserError(f"{path}: cannot be written (Is a directory)")


@contextlib.contextmanager
def written(path: str) -> Iterator[IO[str]]:
  """Opens a text file to write, which is there when the block is left well; what is no plain file at once.

  Raises:
    UserError: it cannot be written.
  """
  whole = is_plain_file(path)
  beside = _beside(path) if whole else Path(path)
  with _refused(path):
    try:
      with beside.open("w", encoding="utf-8") as out:
        yield out
      if whole:
        beside.replace(path)
    finally:
      if whole:
        beside.unlink(missing_ok=True)


def _beside(path: str) -> Path:
  return Path(f"{path}.part")


@contextlib.contextmanager
def _refused(path: str) -> Iterator[None]:
  try:
    yield
  except OSError as error:
    raise UserError(f"{path}: cannot be written ({error.strerror or error})") from None


def _shown(num_bytes: float) -> str:
  return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
