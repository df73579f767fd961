"""Prepared folders on disk: the manifest, whether one can be reused, and which folders a new one may replace.

A folder is built next to its destination and renamed into place, under a lock (`storage.whole_folder`). So it
is complete or absent, even if a process is killed or other processes prepare the same data at the same time.
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from xmc_jax.data.formats.json_records import parsed
from xmc_jax.data.formats.lines import reading
from xmc_jax.data.formats.source import Options, excerpt
from xmc_jax.data.formats.table_files import TABBED, has_labelled_lines, suffix
from xmc_jax.errors import DataError
from xmc_jax.storage import atomic, whole_folder
from xmc_jax.storage.checksums import sha256

FORMAT = "xmc_jax prepared data"
VERSION = 1
FILE_NAME = "manifest.json"

_ROWS = {
  "texts": "texts",
  "empty_texts": "empty texts",
  "repeated_texts": "texts that repeat an earlier one",
  "in_train": "texts that are also in train",
  "tokens": "tokens",
  "unknown": "unknown tokens",
  "cut": "texts cut at the length limit",
  "pairs": "label pairs",
  "duplicates": "duplicate targets, merged",
  "zeros": "targets of relevance 0, left out",
  "without_labels": "points without labels",
  "validation": "points to choose the best parameters by",
  "without_points": "labels without training points",
  "filter_pairs": "filter pairs",
  "filter_duplicates": "duplicate filter pairs, merged",
  "query_edges": "edges to training points",
  "label_edges": "edges to labels",
}
# These rows are shown only if a count is not 0.
_ONLY_IF_ANY = {"empty_texts", "repeated_texts", "in_train", "unknown", "validation"}
_ONLY_IF_ANY |= {"duplicates", "zeros", "filter_duplicates"}
TOKENIZER = "tokenizer.json"
OF_LABELS = ("keys", "names", "concepts")
"""Names what `labels.*.npy` hold of labels besides their texts, if they have it: fields of `KeyedTexts`."""
# A file modified less than this before its checksum was taken may change again with the same time stamp.
_CLOCK_TICK_NS = 2_000_000_000
# What to do where the disk refuses a prepared folder.
REMEDY = "set --config.data.cache_dir or $XMC_JAX_CACHE to another folder, or free some space there"
_OURS = re.compile(r".+\.npy|" + re.escape(FILE_NAME) + "|" + re.escape(TOKENIZER))


def is_prepared(folder: Path) -> bool:
  """Returns whether a folder is a prepared folder, intact or damaged."""
  return (folder / "labels.texts.npy").is_file()


def read_manifest(folder: str | Path) -> dict:
  """Reads and checks the manifest of a prepared folder.

  Raises:
    DataError: there is no manifest, it cannot be read, or it is damaged or of another version.
  """
  path = Path(folder) / FILE_NAME
  try:
    manifest = parsed(path.read_bytes())
  except FileNotFoundError:
    raise DataError(f"{folder}: not a prepared folder ({FILE_NAME} is missing)") from None
  except OSError as error:
    raise DataError(f"{path}: cannot be read ({error.strerror})") from None
  if manifest is None:
    raise DataError(f"{path}: expected JSON; prepare the data again")
  if manifest.get("format") != FORMAT:
    raise DataError(f"{path}: not the manifest of a prepared folder")
  if manifest.get("version") != VERSION:
    found = excerpt(manifest.get("version"))
    raise DataError(f"{path}: expected format version {VERSION}, found {found}; prepare the data again")
  # A name must be a file of this folder. A damaged manifest might contain a path.
  for key, names in (("files", manifest["files"]), ("counts", manifest["counts"].get("graphs", ()))):
    if any("/" in name for name in names):
      raise DataError(f"{path}: the entry {key!r} is damaged; prepare the data again")
  return manifest


def options_for(manifest: dict, path: Path, given: Mapping[str, str] | None = None) -> Options:
  """Returns how another file is read: as the data were, guesses included, but for the options `given`."""
  own = Options(**manifest["options"])
  is_lines = has_labelled_lines(path, own) if path.is_file() else suffix(path) == ".txt"
  found = {} if is_lines else manifest["read_by"]
  guessed = {key: value for key, value in found.items() if value and key in Options._fields}
  if suffix(path) not in TABBED:
    guessed = {**guessed, "quoting": own.quoting}
  return own._replace(**{**guessed, **(given or {})})


def write_manifest(folder: Path, manifest: dict) -> None:
  """Writes the manifest; must be the last file written into a folder."""
  text = json.dumps({"format": FORMAT, "version": VERSION, **manifest}, indent=1, ensure_ascii=False)
  # File names need not be UTF-8. Python stores their invalid bytes as lone surrogates.
  (folder / FILE_NAME).write_bytes(f"{text}\n".encode("utf-8", "surrogatepass"))


def summary(manifest: dict) -> str:
  """Returns the counts of `prepare` as an aligned table with one column for each group of texts."""
  counts = manifest["counts"]
  columns = {"train": counts["train"], "test": counts["test"], "labels": counts["labels"], **counts["graphs"]}
  table = [["", *columns]]
  for key, title in _ROWS.items():
    cells = [column.get(key) for column in columns.values()]
    if any(cells) or (key not in _ONLY_IF_ANY and any(cell is not None for cell in cells)):
      table.append([title, *("" if cell is None else f"{cell:,}" for cell in cells)])
  widths = [max(map(len, column)) for column in zip(*table)]
  how, tokenizer = "no tokens", manifest["tokenizer"]
  if tokenizer:
    name = tokenizer["name"] or f"tokenizer {tokenizer['sha256'][:8]}"
    how = f"tokens of {name}, at most {tokenizer['max_length']} a text"
  lines = [f"{manifest['name']} ({manifest['layout']} layout; {how})"]
  for first, *cells in table:
    shown = [cell.rjust(width) for cell, width in zip(cells, widths[1:])]
    lines.append("  ".join([first.ljust(widths[0]), *shown]).rstrip())
  return "\n".join([*lines, *(f"note: {notice}" for notice in manifest["notices"])])


def fingerprints(files: Sequence[Path], root: Path) -> list[dict]:
  """Returns name, size, time stamp and checksum of source files."""
  prints = []
  for file in files:
    now = time.time_ns()
    with reading(file):
      stat = file.stat()
      entry = {"name": os.path.relpath(file, root), "size": stat.st_size, "sha256": sha256(file)}
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
  """Returns which file of a prepared folder is missing or has the wrong size, or '' if none is."""
  for name, entry in manifest["files"].items():
    if name.startswith("graph.") and not graphs:
      continue
    try:
      size = (folder / name).stat().st_size
    except OSError:
      return f"{name} is missing"
    if size != entry["size"]:
      return f"{name} has {size} of {entry['size']} bytes"
  return ""


def _why_sources_differ(known: list[dict], files: Sequence[Path], root: Path) -> str:
  if [entry["name"] for entry in known] != [os.path.relpath(file, root) for file in files]:
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
  """Yields a new folder to fill, which replaces a prepared one; call it under `whole_folder.in_turn`."""
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
    with contextlib.suppress(DataError):  # it is no prepared folder, or a damaged one
      if read_manifest(destination)["files"] == manifest["files"] and not why_damaged(destination, manifest):
        return destination
    with built_beside(destination) as beside:
      for name in (*manifest["files"], FILE_NAME):
        atomic.link_or_copy(folder / name, beside / name)
  return destination
