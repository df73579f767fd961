"""The seal of a finished folder: what its files are, and a record, in the one file that is written last.

Half a folder has no seal, so it is not used; a folder that is not what it was shows by it.
"""

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from xmc_jax.storage import atomic

FILE_NAME = "seal.json"
_THREADS = 8  # files at a time; hashing leaves Python's lock


def sha256(path: Path) -> str:
  """The file's digest, in hex."""
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def seal(folder: Path, record: Mapping[str, Any]) -> None:
  """Seals a folder whose files will not change any more; they are on the disk before the seal is."""
  files = _files(folder)
  with ThreadPoolExecutor(_THREADS) as threads:
    digests = dict(zip(files, threads.map(_flushed_digest, files.values())))
  for place in {path.parent for path in files.values()}:
    atomic.flush(place)
  sizes = {name: path.stat().st_size for name, path in files.items()}
  _write(folder, {"files": {name: [sizes[name], digests[name]] for name in files}, "record": dict(record)})


def amend(folder: Path, record: Mapping[str, Any]) -> None:
  """Another record for a sealed folder, all at once."""
  _write(folder, {**_read(folder), "record": dict(record)})


def is_sealed(folder: Path) -> bool:
  """Whether a folder was finished."""
  return (folder / FILE_NAME).is_file()


def record(folder: Path) -> dict[str, Any]:
  """A sealed folder's record.

  Raises:
    ValueError, OSError: the seal is damaged, or gone.
  """
  return _read(folder)["record"]


def why_broken(folder: Path) -> str:
  """Which file of a sealed folder is not what it was, in a few words; '' if all are. Reads every byte."""
  try:
    wanted = _read(folder)["files"]
    files = _files(folder)
    for name, (size, _) in wanted.items():
      if name not in files:
        return f"{name} is missing"
      if (found := files[name].stat().st_size) != size:
        return f"{name} has {found:,} of {size:,} bytes"
    with ThreadPoolExecutor(_THREADS) as threads:
      found = dict(zip(wanted, threads.map(sha256, (files[name] for name in wanted))))
  except ValueError:
    return f"{FILE_NAME} has changed"
  except OSError as error:
    return f"{error.filename or folder} cannot be read: {error.strerror}"
  return next((f"{name} has changed" for name in wanted if found[name] != wanted[name][1]), "")


def _read(folder: Path) -> dict[str, Any]:
  """What a seal says; ValueError where it is not as it was written."""
  try:
    found = json.loads((folder / FILE_NAME).read_text())
    own = found.pop("sha256")
    if own == _own_digest(found):
      return found
  except (RecursionError, AttributeError, TypeError, KeyError):
    pass
  raise ValueError(f"{folder / FILE_NAME} has changed")


def _write(folder: Path, content: dict[str, Any]) -> None:
  beside = folder / f"{FILE_NAME}.tmp"
  beside.write_text(json.dumps({**content, "sha256": _own_digest(content)}, indent=1) + "\n")
  atomic.flush(beside)
  beside.replace(folder / FILE_NAME)
  atomic.flush(folder)


def _own_digest(content: dict[str, Any]) -> str:
  return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _flushed_digest(path: Path) -> str:
  atomic.flush(path)
  return sha256(path)


def _files(folder: Path) -> dict[str, Path]:
  """Every file in a folder and below but the seal itself, by its name there."""
  found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
  return {name: path for name, path in found.items() if not name.startswith(FILE_NAME)}
