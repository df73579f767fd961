"""Writes folders whole or not at all: fills a new one beside its place, and replaces the earlier one."""

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from xmc_jax.errors import UserError
from xmc_jax.storage import atomic, locks

_UNFINISHED = "UNFINISHED"  # a locked file in a folder that is being written


@contextlib.contextmanager
def written_whole(folder: Path, is_ours: Callable[[Path], bool]) -> Iterator[Path]:
  """Yields an empty `FOLDER.part` to write into, which replaces `folder` if the block succeeds.

  A killed process leaves the folder as it was, and a `FOLDER.part` that the next process empties. If it is
  killed during the exchange, the earlier folder is left as `FOLDER.old`; see `current`.

  Args:
    folder: where the files are to be.
    is_ours: whether a folder may be replaced.

  Raises:
    UserError: the folder holds something else, another process writes there, or the disk cannot write.
  """
  part = folder.with_name(f"{folder.name}.part")
  old = _earlier(folder)
  try:
    for place in (folder, part, old):
      _check(place, is_ours)
    part.mkdir(parents=True, exist_ok=True)
    with (part / _UNFINISHED).open("w") as mark:
      locks.lock(mark)
      if old.exists() and not folder.exists():
        old.rename(folder)
      for entry in part.iterdir():
        if entry.name != _UNFINISHED:
          _remove(entry)
      yield part
      _flush(part)
      (part / _UNFINISHED).unlink()
      _remove(old)
      _exchange(part, folder, old)
  except OSError as error:
    raise atomic.write_error(error.filename or folder, error) from None


@contextlib.contextmanager
def in_turn(folder: Path) -> Iterator[None]:
  """Lets one process at a time use `built_beside`; removes folders left by killed processes."""
  folder.parent.mkdir(parents=True, exist_ok=True)
  with locks.in_turn(folder.parent / f".{folder.name}.lock") as is_alone:
    for leftover in folder.parent.glob(f"{_building(folder)}*") if is_alone else ():
      shutil.rmtree(leftover, ignore_errors=True)
    yield


@contextlib.contextmanager
def built_beside(folder: Path) -> Iterator[Path]:
  """Yields a new folder to fill, which replaces `folder` if the block succeeds; call it under `in_turn`."""
  beside = _new_name(folder)
  beside.mkdir()
  old = _new_name(folder)
  try:
    yield beside
    _flush(beside)
    try:
      _exchange(beside, folder, old)
    except OSError as error:
      # Without locks another process may have written the same content first.
      if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
        raise
  finally:
    shutil.rmtree(beside, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def current(folder: Path) -> Path:
  """Returns the folder itself, or `FOLDER.old` if a process was killed during the exchange."""
  old = _earlier(folder)
  return old if old.is_dir() and not folder.exists() else folder


def is_finished(folder: Path) -> bool:
  """Returns False for a folder that a process is writing, or was writing when it was killed."""
  return not (folder / _UNFINISHED).exists()


def _earlier(folder: Path) -> Path:
  return folder.with_name(f"{folder.name}.old")


def _building(folder: Path) -> str:
  return f".{folder.name}.building-"


def _new_name(folder: Path) -> Path:
  return folder.parent / f"{_building(folder)}{os.getpid()}-{secrets.token_hex(4)}"


def _check(place: Path, is_ours: Callable[[Path], bool]) -> None:
  if place.is_symlink():
    raise UserError(f"{place} is a link; name the folder that it leads to")
  if not place.exists():
    return
  if not place.is_dir():
    raise UserError(f"{place} is a file; name another folder")
  if is_finished(place) and any(place.iterdir()) and not is_ours(place):
    raise UserError(f"{place} holds other files than an earlier export; name another folder, or empty it")


def _exchange(beside: Path, folder: Path, old: Path) -> None:
  """Renames `beside` to `folder`. Processes that have the earlier files open keep them.

  A folder cannot be renamed over one that is not empty, so the earlier one is renamed to `old` and deleted.
  """
  with contextlib.suppress(FileNotFoundError):
    folder.rename(old)
  beside.rename(folder)
  _remove(old)


def _remove(entry: Path) -> None:
  if entry.is_dir() and not entry.is_symlink():
    shutil.rmtree(entry)
  else:
    entry.unlink(missing_ok=True)


def _flush(folder: Path) -> None:
  """Flushes a folder to disk, because a rename must not reach the disk before the renamed files."""
  for path in (*folder.rglob("*"), folder):
    atomic.flush(path)
