"""Writes files whole or not at all, and turns errors of a disk into one line."""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from xmc_jax.errors import UnavailableError, UserError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def check_room(folder: Path, num_bytes: float, what: str) -> None:
  """Refuses to write more than fits on the disk of a folder, which need not exist yet.

  Raises:
    UserError: the disk has less room; the message names `what` is written.
  """
  place = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
  try:
    free = shutil.disk_usage(place).free
  except OSError:  # a disk that does not report it
    return
  if free < num_bytes:
    raise UserError(
      f"{folder}: {what} takes up to {_size_text(num_bytes)}, and this disk has {_size_text(free)} left; "
      "free some, or choose a folder on another"
    )


def write_error(path: str | Path, error: OSError, remedy: str = "") -> UnavailableError:
  """Returns the one line for a file or folder that could not be written; a lock has a remedy of its own."""
  reason = error.strerror or str(error)
  if isinstance(error, BlockingIOError):
    reason, remedy = "another process writes here", "wait for it, or give another place"
  elif isinstance(error, FileNotFoundError) and not Path(path).absolute().parent.is_dir():
    reason = f"there is no folder {Path(path).parent}"
  elif error.errno in _FULL:
    remedy = remedy or "free some space, and give the same command again"
  return UnavailableError(f"{path}: cannot be written ({reason}){f'; {remedy}' * bool(remedy)}")


@contextlib.contextmanager
def writing(path: str | Path, remedy: str = "") -> Iterator[None]:
  """Turns an OSError while `path` is written into an UnavailableError of one line; see `write_error`."""
  try:
    yield
  except OSError as error:
    raise write_error(path, error, remedy) from None


@contextlib.contextmanager
def written_whole(path: Path, durable: bool = False) -> Iterator[Path]:
  """Yields a path to write to, which replaces `path` if the block succeeds; until then `path` stays as it is.

  If `durable`, waits until the file is on the disk, so that it survives a power failure.

  Raises:
    UserError: it cannot be written.
  """
  beside = unfinished(path)
  with writing(path):
    try:
      yield beside
      if durable:
        flush(beside)
      beside.replace(path)
      if durable:
        flush(path.parent)
    except BaseException:
      beside.unlink(missing_ok=True)
      raise


def write_text(path: Path, text: str, durable: bool = False) -> None:
  """Writes a text file whole or not at all; see `written_whole`."""
  with written_whole(path, durable) as beside:
    beside.write_text(text, encoding="utf-8")


def write_json(path: Path, content: object) -> None:
  """Writes indented JSON, whole or not at all."""
  write_text(path, json.dumps(content, indent=2) + "\n")


def write_bytes(path: Path, data: bytes) -> None:
  """Writes a file whole or not at all."""
  with written_whole(path) as beside:
    beside.write_bytes(data)


def link_or_copy(source: str | Path, destination: str | Path) -> None:
  """Gives a file a second place, by a hard link where the disk allows it; it must never change in place."""
  try:
    os.link(source, destination)
  except OSError:
    shutil.copyfile(source, destination)


def is_plain_file(path: str | Path) -> bool:
  """Returns whether a path names an existing or future file; False for a pipe, a device or a link."""
  return bool(str(path)) and not os.path.islink(path) and (os.path.isfile(path) or not os.path.exists(path))


def check_output(path: str) -> None:
  """Raises UserError if `open_output` could not write to `path`: it is a folder, or not writable."""
  with writing(path):
    if os.path.isdir(path):
      raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if is_plain_file(path):
      unfinished(Path(path)).touch()
      unfinished(Path(path)).unlink()


@contextlib.contextmanager
def open_output(path: str) -> Iterator[IO[str]]:
  """Opens a text file that the user has named: written whole, or directly if it is no plain file.

  Raises:
    UserError: it cannot be written.
  """
  whole = written_whole(Path(path)) if is_plain_file(path) else contextlib.nullcontext(Path(path))
  with writing(path), whole as place, place.open("w", encoding="utf-8") as out:
    yield out


def flush(path: Path) -> None:
  """Flushes a file, or a folder's list of files, to the disk."""
  handle = os.open(path, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)


def unfinished(path: Path) -> Path:
  """Returns where a file is written before it replaces `path`; a process that is killed leaves it there."""
  return path.with_name(f"{path.name}.tmp")


def _size_text(num_bytes: float) -> str:
  return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
