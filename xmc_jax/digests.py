"""The seal of a finished folder: digests of its files, so that half of it is not used, and damage shows."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from xmc_jax.data.arrays import sha256

FILE_NAME = "digests.json"
_THREADS = 8  # files at a time; hashing leaves Python's lock


def seal(folder: Path) -> None:
  """Writes the size and SHA-256 of every file of a folder that will not change any more."""
  files = _files(folder)
  with ThreadPoolExecutor(_THREADS) as threads:
    digests = dict(zip(files, threads.map(sha256, files.values())))
  entries = {name: {"size": path.stat().st_size, "sha256": digests[name]} for name, path in files.items()}
  beside = folder / f"{FILE_NAME}.tmp"
  with beside.open("w") as file:
    file.write(json.dumps(entries, indent=1) + "\n")
    file.flush()
    os.fsync(file.fileno())
  beside.replace(folder / FILE_NAME)


def is_sealed(folder: Path) -> bool:
  """Whether a folder was finished."""
  return (folder / FILE_NAME).is_file()


def why_broken(folder: Path) -> str:
  """Which file of a sealed folder is not what it was, in a few words; '' if all are.

  Reads every byte, a few files at a time.
  """
  try:
    entries = json.loads((folder / FILE_NAME).read_text())
    wanted = {name: (entry["size"], entry["sha256"]) for name, entry in entries.items()}
  except (OSError, ValueError, AttributeError, TypeError, KeyError):
    return f"{FILE_NAME} is damaged"
  files = _files(folder)
  for name, (size, _) in wanted.items():
    if name not in files:
      return f"{name} is missing"
    if (found := files[name].stat().st_size) != size:
      return f"{name} has {found:,} of {size:,} bytes"
  with ThreadPoolExecutor(_THREADS) as threads:
    for name, digest in zip(wanted, threads.map(lambda name: _digest(files[name]), wanted)):
      if digest != wanted[name][1]:
        return f"{name} has changed" if digest else f"{name} cannot be read"
  return ""


def _digest(path: Path) -> str:
  """The file's digest; '' where the disk does not give it."""
  try:
    return sha256(path)
  except OSError:
    return ""


def _files(folder: Path) -> dict[str, Path]:
  """Every file in a folder and below but the seal itself, by its name there."""
  found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
  return {name: path for name, path in found.items() if not name.startswith(FILE_NAME)}
