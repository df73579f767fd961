"""Writes and checks the manifest of a finished folder: checksums of its files, and a record.

The manifest is written last. A folder without one was never finished, so it is not used. The files of a
damaged folder differ from its manifest.
"""

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from xmc_jax.storage import atomic

FILE_NAME = "manifest.json"
_THREADS = 8  # files hashed at a time; hashing releases Python's lock


def sha256(path: Path) -> str:
  """Returns a file's checksum, in hex."""
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, record: Mapping[str, Any]) -> None:
  """Finishes a folder whose files will not change any more; flushes them to disk before the manifest."""
  files = _files(folder)
  with ThreadPoolExecutor(_THREADS) as threads:
    checksums = dict(zip(files, threads.map(_flushed_checksum, files.values())))
  for place in {path.parent for path in files.values()}:
    atomic.flush(place)
  sizes = {name: path.stat().st_size for name, path in files.items()}
  _write(folder, {"files": {name: [sizes[name], checksums[name]] for name in files}, "record": dict(record)})


def update_record(folder: Path, record: Mapping[str, Any]) -> None:
  """Replaces the record of a finished folder, whole or not at all."""
  _write(folder, {**_read(folder), "record": dict(record)})


def read_record(folder: Path) -> dict[str, Any]:
  """Returns a finished folder's record.

  Raises:
    ValueError, OSError: the manifest is damaged or missing.
  """
  return _read(folder)["record"]


def why_damaged(folder: Path) -> str:
  """Returns which file of a finished folder has changed, in a few words; '' if none. Reads every byte."""
  try:
    recorded = _read(folder)["files"]
    files = _files(folder)
    for name, (size, _) in recorded.items():
      if name not in files:
        return f"{name} is missing"
      if (present := files[name].stat().st_size) != size:
        return f"{name} has {present:,} of {size:,} bytes"
    with ThreadPoolExecutor(_THREADS) as threads:
      sums = dict(zip(recorded, threads.map(sha256, (files[name] for name in recorded))))
  except ValueError:
    return f"{FILE_NAME} has changed"
  except OSError as error:
    return f"{error.filename or folder} cannot be read: {error.strerror}"
  return next((f"{name} has changed" for name in recorded if sums[name] != recorded[name][1]), "")


def to_json(content: dict[str, Any]) -> str:
  """Returns content as JSON with its own checksum."""
  return json.dumps({**content, "sha256": _own_checksum(content)}) + "\n"


def from_json(path: Path) -> dict[str, Any]:
  """Reads a file that `to_json` wrote.

  Raises:
    ValueError, OSError: it was modified, or cannot be read.
  """
  try:
    content = json.loads(path.read_text(encoding="utf-8"))
    if content.pop("sha256") == _own_checksum(content):
      return content
  except (ValueError, RecursionError, AttributeError, TypeError, KeyError):
    pass
  raise ValueError("it was modified")


def _read(folder: Path) -> dict[str, Any]:
  return from_json(folder / FILE_NAME)


def _write(folder: Path, content: dict[str, Any]) -> None:
  atomic.write_text(folder / FILE_NAME, to_json(content), durable=True)


def _own_checksum(content: dict[str, Any]) -> str:
  return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _flushed_checksum(path: Path) -> str:
  atomic.flush(path)
  return sha256(path)


def _files(folder: Path) -> dict[str, Path]:
  """Returns all files in a folder and below, except the manifest, by their names relative to it."""
  paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
  return {name: path for name, path in paths.items() if not name.startswith(FILE_NAME)}
