"""Folders that are there whole or not at all, and that take the place of an earlier one."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from xmc_jax.errors import UserError
from xmc_jax.storage import atomic

_UNFINISHED = "UNFINISHED"  # stands in a folder that is being written, and holds its lock


@contextlib.contextmanager
def written_whole(folder: Path, is_ours: Callable[[Path], bool]) -> Iterator[Path]:
  """Gives an empty `FOLDER.part` to write into, which takes the folder's place when the block is left well.

  A process that is killed leaves the folder as it was, and a `FOLDER.part` that the next one empties. Killed
  in the moment of the exchange it leaves what was there as `FOLDER.old`; see `standing`.

  Args:
    folder: where the files are to stand.
    is_ours: whether a folder may be replaced.

  Raises:
    UserError: something else stands there, another process writes there, or the disk refuses.
  """
  part, old = _beside(folder, "part"), _beside(folder, "old")
  try:
    for place in (folder, part, old):
      _check(place, is_ours)
    part.mkdir(parents=True, exist_ok=True)
    with (part / _UNFINISHED).open("w") as mark:
      atomic.lock(mark, str(folder))
      if old.exists() and not folder.exists():
        old.rename(folder)
      for entry in part.iterdir():
        if entry.name != _UNFINISHED:
          _remove(entry)
      yield part
      _flush(part)
      (part / _UNFINISHED).unlink()
      _remove(old)
      if folder.exists():
        folder.rename(old)
      part.rename(folder)
      _remove(old)
  except OSError as error:
    raise UserError(f"{error.filename or folder}: cannot be written ({error.strerror or error})") from None


def standing(folder: Path) -> Path:
  """Where a folder's files are: there, or where a process that was killed in the exchange left them."""
  old = _beside(folder, "old")
  return old if old.is_dir() and not folder.exists() else folder


def is_finished(folder: Path) -> bool:
  """Whether nobody is writing, or was killed while writing, into a folder."""
  return not (folder / _UNFINISHED).exists()


def _beside(folder: Path, suffix: str) -> Path:
  return folder.with_name(f"{folder.name}.{suffix}")


def _check(place: Path, is_ours: Callable[[Path], bool]) -> None:
  if place.is_symlink():
    raise UserError(f"{place} is a link; name the folder that it leads to")
  if not place.exists():
    return
  if not place.is_dir():
    raise UserError(f"{place} is a file; name another folder")
  if is_finished(place) and any(place.iterdir()) and not is_ours(place):
    raise UserError(f"{place} holds something else than an earlier export; name another folder, or empty it")


def _remove(entry: Path) -> None:
  if entry.is_dir() and not entry.is_symlink():
    shutil.rmtree(entry)
  else:
    entry.unlink(missing_ok=True)


def _flush(folder: Path) -> None:
  """Waits until all files of a folder, and the lists of them, are on the disk."""
  for path in (*folder.rglob("*"), folder):
    atomic.flush(path)
