"""`manifest.json`, which describes the contents of a prepared folder, and its table for the console."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import UnionType

from xmc_jax.data.formats.source import Options, excerpt
from xmc_jax.data.formats.table_files import TABBED, has_header, suffix
from xmc_jax.errors import DataError

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
# Entries of a manifest, besides format and version, by their types.
_ENTRIES: dict[type | UnionType, tuple[str, ...]] = {
  str: ("name", "layout"),
  list: ("sources", "notices"),
  dict: ("options", "counts", "files"),
  dict | None: ("tokenizer", "read_by"),
}


def is_prepared(folder: Path) -> bool:
  """Returns whether a folder is a prepared folder, intact or damaged."""
  if (folder / "labels.texts.npy").is_file():
    return True
  try:
    return json.loads((folder / FILE_NAME).read_bytes()).get("format") == FORMAT
  except (OSError, ValueError, RecursionError, AttributeError):
    return False


def read_manifest(folder: str | Path) -> dict:
  """Reads and checks the manifest of a prepared folder.

  Raises:
    DataError: there is no manifest, it cannot be read, or it is damaged or of another version.
  """
  path = Path(folder) / FILE_NAME
  try:
    manifest = json.loads(path.read_bytes())
  except FileNotFoundError:
    raise DataError(f"{folder}: not a prepared folder ({FILE_NAME} is missing)") from None
  except OSError as error:
    raise DataError(f"{path}: cannot be read ({error.strerror})") from None
  except (ValueError, RecursionError):
    raise DataError(f"{path}: expected JSON; prepare the data again") from None
  if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
    raise DataError(f"{path}: not the manifest of a prepared folder")
  if manifest.get("version") != VERSION:
    found = excerpt(manifest.get("version"))
    raise DataError(f"{path}: expected format version {VERSION}, found {found}; prepare the data again")
  for kind, keys in _ENTRIES.items():
    if wrong := [key for key in keys if not isinstance(manifest.get(key), kind)]:
      raise DataError(f"{path}: the entry {wrong[0]!r} is damaged; prepare the data again")
  # A name must be a file of this folder. A damaged manifest might contain a path.
  for key, names in (("files", manifest["files"]), ("counts", manifest["counts"].get("graphs", ()))):
    if any("/" in name for name in names):
      raise DataError(f"{path}: the entry {key!r} is damaged; prepare the data again")
  return manifest


def options_for(manifest: dict, path: Path, given: Mapping[str, str] | None = None) -> Options:
  """Returns how another file is read: as the data were, guesses included, but for the options `given`."""
  own = Options(**manifest["options"])
  is_lines = suffix(path) == ".txt" and not (path.is_file() and has_header(path, own))
  found = {} if is_lines else manifest.get("read_by") or {}
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
  lines = [_title(manifest)]
  for first, *cells in table:
    shown = [cell.rjust(width) for cell, width in zip(cells, widths[1:])]
    lines.append("  ".join([first.ljust(widths[0]), *shown]).rstrip())
  return "\n".join([*lines, *(f"note: {notice}" for notice in manifest["notices"])])


def _title(manifest: dict) -> str:
  tokenizer = manifest["tokenizer"]
  how = "no tokens"
  if tokenizer:
    name = tokenizer["name"] or f"tokenizer {tokenizer['sha256'][:8]}"
    how = f"tokens of {name}, at most {tokenizer['max_length']} a text"
  return f"{manifest['name']} ({manifest['layout']} layout; {how})"
