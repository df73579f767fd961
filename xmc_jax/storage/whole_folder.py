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


@contextlib.contextmanager
def written_whole(folder: Path, is_ours: Callable[[Path], bool]) -> Iterator[Path]:
  """Yields a new folder to fill, which replaces `folder` if the block succeeds.

  A killed process leaves the folder as it was; if it is killed during the exchange, see `current`.

  Raises:
    UserError: the folder is not empty, nor `is_ours`, another process writes there, or the disk cannot write.
  """
  if folder.is_symlink():
    raise UserError(f"{folder} is a link; name the folder that it leads to")
  if folder.exists() and not folder.is_dir():
    raise UserError(f"{folder} is a file; name another folder")
  if folder.exists() and any(folder.iterdir()) and not is_ours(folder):
    raise UserError(f"{folder} holds other files than an earlier export; name another folder, or empty it")
  try:
    with in_turn(folder, wait=False), built_beside(folder) as beside:
      yield beside
  except OSError as error:
    raise atomic.write_error(error.filename or folder, error) from None


@contextlib.contextmanager
def in_turn(folder: Path, wait: bool = True) -> Iterator[None]:
  """Lets one process at a time use `built_beside`; puts in order what killed processes left.

  Raises:
    BlockingIOError: another process is at it, and `wait` is False.
  """
  folder.parent.mkdir(parents=True, exist_ok=True)
  with locks.in_turn(folder.parent / f".{folder.name}.lock", wait) as is_alone:
    if is_alone:
      if (old := current(folder)) != folder:
        old.rename(folder)
      for leftover in folder.parent.glob(f"{_building(folder)}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    yield


@contextlib.contextmanager
def built_beside(folder: Path) -> Iterator[Path]:
  """Yields a new folder to fill, which replaces `folder` if the block succeeds; call it under `in_turn`."""
  beside = folder.parent / f"{_building(folder)}{os.getpid()}-{secrets.token_hex(4)}"
  beside.mkdir()
  try:
    yield beside
    for path in (*beside.rglob("*"), beside):  # a rename must not reach the disk before the renamed files
      atomic.flush(path)
    try:
      _exchange(beside, folder)
    except OSError as error:
      # Without locks another process may have written the same content first.
      if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
        raise
  finally:
    shutil.rmtree(beside, ignore_errors=True)


def current(folder: Path) -> Path:
  """Returns the folder itself, or the earlier one if a process was killed during the exchange."""
  old = _earlier(folder)
  return old if old.is_dir() and not folder.exists() else folder


def _exchange(beside: Path, folder: Path) -> None:
  """Renames `beside` to `folder`. Processes that have the earlier files open keep them.

  A folder cannot be renamed over one that is not empty, so the earlier one is renamed and deleted.
  """
  if folder.exists():
    _remove(_earlier(folder))
    folder.rename(_earlier(folder))
  beside.rename(folder)
  _remove(_earlier(folder))


def _earlier(folder: Path) -> Path:
  return folder.with_name(f".{folder.name}.old")


def _building(folder: Path) -> str:
  return f".{folder.name}.building-"


def _remove(folder: Path) -> None:
  if folder.is_symlink():
    folder.unlink()
  elif folder.exists():
    shutil.rmtree(folder)
