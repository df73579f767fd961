"""Prepared folders on disk: whether one can be reused, and which folders a new one may replace.

A folder is built next to its destination and renamed into place, under a lock (`storage.whole_folder`). So it
is complete or absent, even if a process is killed or other processes prepare the same data at the same time.
"""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from xmc_jax.data.formats.lines import reading
from xmc_jax.data.formats.source import excerpt
from xmc_jax.data.manifest import FILE_NAME, read_manifest
from xmc_jax.errors import DataError
from xmc_jax.storage import atomic, whole_folder
from xmc_jax.storage.checksums import sha256

TOKENIZER = "tokenizer.json"
# A file modified less than this before its checksum was taken may change again with the same time stamp.
_CLOCK_TICK_NS = 2_000_000_000
# What to do where the disk refuses a prepared folder.
REMEDY = "set --config.data.cache_dir or $XMC_JAX_CACHE to another folder, or free some space there"
_OURS = re.compile(r".+\.npy|" + re.escape(FILE_NAME) + "|" + re.escape(TOKENIZER))


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
def built_beside(folder: Path) -> Iterator[Path]:
  """Yields a new folder to fill, which replaces `folder`; call it under `whole_folder.in_turn`.

  Raises:
    DataError: `folder` exists and is not a prepared folder.
  """
  foreign = [] if not folder.is_dir() else [name for name in os.listdir(folder) if not _OURS.fullmatch(name)]
  if foreign or folder.is_file():
    what = f"it holds {foreign[0]}" if foreign else "it is a file"
    raise DataError(f"{folder}: not a prepared folder ({what}), so it is left alone; choose another place")
  with whole_folder.built_beside(folder) as beside:
    yield beside


def link_into(folder: str | Path, destination: str | Path) -> Path:
  """Copies a prepared folder to a second place, by hard links where the disk allows them.

  A run that keeps its data this way still has them if the cache is deleted. Files are never changed in place,
  so neither folder can damage the other.

  Returns:
    The destination, left unchanged if it already holds the same.

  Raises:
    DataError: `folder` is not a prepared folder, or `destination` holds other files.
    UserError: `destination` cannot be written.
  """
  folder, destination = Path(folder), Path(destination)
  manifest = read_manifest(folder)
  with (
    atomic.writing(destination, "choose another --workdir, or free some space there"),
    whole_folder.in_turn(destination),
  ):
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
