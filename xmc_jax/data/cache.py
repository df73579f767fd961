"""Prepared folders on disk: whether one can be reused, and how a new one replaces it.

A folder is built next to its destination and renamed into place, under a lock. So it is complete or absent,
even if a process is killed or other processes prepare the same data at the same time.
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from xmc_jax.data.formats.lines import reading
from xmc_jax.data.formats.source import excerpt
from xmc_jax.data.manifest import FILE_NAME, read_manifest
from xmc_jax.errors import DataError
from xmc_jax.storage import atomic
from xmc_jax.storage.checksums import sha256

TOKENIZER = "tokenizer.json"
# A file modified less than this before its checksum was taken may change again with the same time stamp.
_CLOCK_TICK_NS = 2_000_000_000
_OURS = re.compile(r".+\.npy|" + re.escape(FILE_NAME) + "|" + re.escape(TOKENIZER))


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
  """Turns an OSError while a folder is written into a one-line DataError."""
  try:
    yield
  except OSError as error:
    why = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
      why = "the disk is full; free some space or choose another folder"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
      why = f"no permission to write ({why}); choose another folder"
    raise DataError(f"{folder}: cannot be written: {why}") from None


def fingerprints(files: Sequence[Path], root: Path) -> list[dict]:
  """Returns name, size, time stamp and checksum of source files."""
  prints = []
  for file in files:
    now = time.time_ns()
    with reading(file):
      stat = file.stat()
      entry = {"name": _name(file, root), "size": stat.st_size, "sha256": sha256(file)}
      settled = stat.st_mtime_ns < now - _CLOCK_TICK_NS
      prints.append({**entry, "mtime_ns": stat.st_mtime_ns if settled else None})
  return prints


def why_stale(folder: Path, identity: dict, files: Sequence[Path], root: Path) -> str:
  """Returns why a prepared folder cannot be reused, in a few words; '' if it can."""
  if not folder.exists():
    return "not prepared yet"
  try:
    manifest = read_manifest(folder)
  except DataError as error:
    return str(error)
  for key, wanted in identity.items():
    if manifest.get(key) != wanted:
      return f"prepared with another {key}"
  damaged = why_damaged(folder, manifest)
  return damaged or _why_sources_differ(manifest["sources"], files, root)


def why_damaged(folder: Path, manifest: dict, graphs: bool = True) -> str:
  """Returns which file of a prepared folder is missing or has the wrong size, or '' if none is.

  Args:
    folder: the prepared folder.
    manifest: its manifest.
    graphs: whether the files of metadata graphs are checked.
  """
  for name, entry in manifest["files"].items():
    if name.startswith("graph.") and not graphs:
      continue
    try:
      size = (folder / name).stat().st_size
    except (OSError, ValueError):  # an impossible file name raises ValueError
      return f"{name if name.isprintable() else excerpt(name)} is missing"
    if size != entry["size"]:
      return f"{name} has {size} of {entry['size']} bytes"
  return ""


def _name(file: Path, root: Path) -> str:
  return os.path.relpath(file, root)


def _why_sources_differ(known: list[dict], files: Sequence[Path], root: Path) -> str:
  if [entry["name"] for entry in known] != [_name(file, root) for file in files]:
    return "there are other source files now"
  for entry, file in zip(known, files):
    with reading(file):
      stat = file.stat()
      same = stat.st_size == entry["size"]
      if same and stat.st_mtime_ns != entry["mtime_ns"]:
        same = sha256(file) == entry["sha256"]
    if not same:
      return f"{entry['name']} has changed"
  return ""


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
  """Runs the body in one process at a time; first removes what killed processes have left."""
  folder.parent.mkdir(parents=True, exist_ok=True)
  path = folder.parent / f".{folder.name}.lock"
  handle = _locked(path)
  if handle is None:
    yield
    return
  try:
    for leftover in folder.parent.glob(f"{_beside(folder)}*"):
      shutil.rmtree(leftover, ignore_errors=True)
    yield
  finally:
    path.unlink(missing_ok=True)
    os.close(handle)


def _locked(path: Path) -> int | None:
  """Locks the file; returns its handle, or None on systems without locks. A kill releases the lock."""
  try:
    import fcntl
  except ImportError:
    return None
  while True:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
      fcntl.flock(handle, fcntl.LOCK_EX)
      # The previous holder has deleted its lock file. The lock counts only if this file is still in place.
      if os.path.samestat(os.fstat(handle), os.stat(path)):
        return handle
    except FileNotFoundError:
      pass
    except OSError as error:
      if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
        raise
      os.close(handle)
      return None
    os.close(handle)


def _beside(folder: Path) -> str:
  return f".{folder.name}.building-"


def _fresh_name(folder: Path) -> Path:
  return folder.parent / f"{_beside(folder)}{os.getpid()}-{secrets.token_hex(4)}"


@contextlib.contextmanager
def built_beside(folder: Path) -> Iterator[Path]:
  """Yields a new folder to fill, which then replaces `folder`; call it under `exclusive`.

  Raises:
    DataError: `folder` exists and is not a prepared folder.
  """
  _refuse_foreign(folder)
  beside = _fresh_name(folder)
  beside.mkdir()
  try:
    yield beside
    _flush(beside)
    _swap_in(beside, folder)
  finally:
    shutil.rmtree(beside, ignore_errors=True)


def _refuse_foreign(folder: Path) -> None:
  foreign = [] if not folder.is_dir() else [name for name in os.listdir(folder) if not _OURS.fullmatch(name)]
  if foreign or folder.is_file():
    what = f"it holds {foreign[0]}" if foreign else "it is a file"
    raise DataError(f"{folder}: not a prepared folder ({what}), so it is left alone; choose another place")


def _flush(folder: Path) -> None:
  """Flushes the folder to disk, because a rename must not reach the disk before the renamed files."""
  for path in (*folder.iterdir(), folder):
    atomic.flush(path)


def _swap_in(beside: Path, folder: Path) -> None:
  # A folder cannot be renamed over a non-empty one. Processes that have the old files open keep them.
  old = _fresh_name(folder)
  with contextlib.suppress(FileNotFoundError):
    os.rename(folder, old)
  try:
    os.rename(beside, folder)
  except OSError as error:
    # Without locks another process may have been faster, with the same content.
    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
      raise
  shutil.rmtree(old, ignore_errors=True)


def link_into(folder: str | Path, destination: str | Path) -> Path:
  """Copies a prepared folder to a second place, by hard links where the disk allows them.

  A run that keeps its data this way still has them if the cache is deleted. Files are never changed in place,
  so neither folder can damage the other.

  Returns:
    The destination, left unchanged if it already holds the same.

  Raises:
    DataError: `folder` is not a prepared folder, or `destination` holds other files or cannot be written.
  """
  folder, destination = Path(folder), Path(destination)
  manifest = read_manifest(folder)
  with writing(destination), exclusive(destination):
    if not why_stale_copy(destination, manifest):
      return destination
    with built_beside(destination) as beside:
      for name in (*manifest["files"], FILE_NAME):
        try:
          os.link(folder / name, beside / name)
        except OSError:
          shutil.copyfile(folder / name, beside / name)
  return destination


def why_stale_copy(destination: Path, manifest: dict) -> str:
  """Returns why a linked folder is not (or no longer) the same as its source; '' if it is."""
  try:
    if read_manifest(destination)["files"] != manifest["files"]:
      return "prepared differently"
  except DataError as error:
    return str(error)
  return why_damaged(destination, manifest)
