"""Locks files, so that processes do not write to each other's. A killed process releases its locks."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from xmc_jax.errors import UnavailableError

_TRAINS = "trains in this folder; wait for it, or stop it"


def lock(file: IO | int, wait: bool = False) -> bool:
  """Locks an open file until it is closed or its process ends.

  Args:
    file: the file, or its descriptor.
    wait: wait for a process that holds the lock.

  Returns:
    False on disks without locks, where other processes may write, too.

  Raises:
    BlockingIOError: another process holds the lock, and `wait` is False.
  """
  try:
    fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    raise
  except OSError:
    return False
  return True


@contextlib.contextmanager
def in_turn(path: Path, wait: bool = True) -> Iterator[bool]:
  """Runs the block in one process at a time, under a lock file that is deleted afterwards.

  Yields:
    False on disks without locks, where other processes may run the block, too.

  Raises:
    BlockingIOError: another process runs the block, and `wait` is False.
  """
  handle, is_locked = _locked_file(path, wait)
  try:
    yield is_locked
  finally:
    path.unlink(missing_ok=True)
    os.close(handle)


def _locked_file(path: Path, wait: bool) -> tuple[int, bool]:
  while True:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
      is_locked = lock(handle, wait)
    except BlockingIOError:
      os.close(handle)
      raise
    # The previous holder has deleted its file. A lock counts only if the locked file is still in place.
    with contextlib.suppress(FileNotFoundError):
      if not is_locked or os.path.samestat(os.fstat(handle), os.stat(path)):
        return handle, is_locked
    os.close(handle)


@contextlib.contextmanager
def in_use(workdir: Path, name: str = ".lock", doing: str = _TRAINS) -> Iterator[None]:
  """Refuses a second process that would do the same in a folder; makes the folder, and removes it if empty.

  Args:
    workdir: the folder.
    name: the lock file in it; each activity has its own.
    doing: what the first process does, and what the user can do about it, for the message.

  Raises:
    UnavailableError: another process does this here; the message names it.
  """
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    handle = os.open(workdir / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
  except OSError:  # a folder that cannot be written is refused later, at the first write
    yield
    return
  try:
    if lock(handle):
      with contextlib.suppress(OSError):
        os.truncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
  except BlockingIOError:
    holder = os.pread(handle, 200, 0).decode(errors="replace") or "another process"
    os.close(handle)
    raise UnavailableError(f"{workdir}: {holder} {doing}") from None
  try:
    yield
  finally:
    with contextlib.suppress(OSError):
      if os.listdir(workdir) == [name]:  # the block has written nothing
        (workdir / name).unlink()
        workdir.rmdir()
    os.close(handle)
