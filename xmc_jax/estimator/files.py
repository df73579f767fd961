"""Keeps the files of a fitted estimator: in a temporary folder, or packed as bytes in a pickle."""

import os
import pathlib
import shutil
import tempfile
import weakref
from collections.abc import Mapping

from xmc_jax.storage import atomic, run_folder

# What prediction needs of a run's folder, apart from its parameters.
_NEEDED = (
  *("config.json", "chunks.json", "data", "encoder", "tokenizer.json"),
  *(run_folder.COMBINED, run_folder.LEARNT, *run_folder.RANKING_FILES),
)


class TemporaryFolder:
  """Makes a folder, `path`, that is deleted with this object, or when the process ends."""

  def __init__(self) -> None:
    self.path = pathlib.Path(tempfile.mkdtemp(prefix="xmc_jax-"))
    self._finalizer = weakref.finalize(self, _delete, self.path, os.getpid())

  def delete(self) -> None:
    """Deletes the folder now."""
    self._finalizer()


def _delete(folder: pathlib.Path, owner: int) -> None:
  if os.getpid() == owner:  # and not a process that it has forked
    shutil.rmtree(folder, ignore_errors=True)


def keep_run(folder: pathlib.Path, run: pathlib.Path) -> None:
  """Deletes what only training needs: raw data, logs, checkpoints where there are better parameters."""
  needed = _needed(run)
  for path in sorted(folder.rglob("*"), reverse=True):  # a folder comes after its files
    if path.is_file() and path not in needed:
      path.unlink()
    elif path.is_dir() and not any(path.iterdir()):
      path.rmdir()


def packed(run: pathlib.Path) -> dict[str, bytes]:
  """Returns the files that prediction needs, by their paths in the run's folder; hard links share bytes."""
  inodes = {path: path.stat().st_ino for path in sorted(_needed(run))}
  one_of = {inode: path for path, inode in inodes.items()}
  contents = {inode: path.read_bytes() for inode, path in one_of.items()}
  return {path.relative_to(run).as_posix(): contents[inode] for path, inode in inodes.items()}


def unpack(files: Mapping[str, bytes], folder: pathlib.Path) -> None:
  """Writes what `packed` returned into an empty folder; raises UserError if the disk refuses the files."""
  with atomic.writing(folder):
    for name, content in files.items():
      path = folder / name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(content)


def _needed(run: pathlib.Path) -> set[pathlib.Path]:
  roots = [run / name for name in _NEEDED]
  better = (run / run_folder.REFIT / run_folder.BEST, run / run_folder.BEST)
  roots.append(next((folder for folder in better if any(folder.glob("*"))), run / run_folder.NEWEST))
  roots.append(run / run_folder.REFIT / run_folder.MEMORY)
  members = (run / run_folder.MEMBERS / name for name in run_folder.combined(run))
  own = {path for root in roots for path in (root, *root.rglob("*")) if path.is_file()}
  own.discard(run / "encoder" / "model.safetensors")  # the first table: training made a better one
  return own.union(*map(_needed, members))
