"""`manifest.json`, which says what a prepared folder holds, and its table for the console."""

import json
from pathlib import Path

from xmc_jax.contract import DataError

FORMAT = "xmc_jax prepared data"
VERSION = 1
FILE_NAME = "manifest.json"

_ROWS = {
  "texts": "texts",
  "empty_texts": "empty texts",
  "tokens": "tokens",
  "full_length": "texts at the length limit",
  "pairs": "label pairs",
  "duplicates": "duplicate targets, merged",
  "zeros": "targets of relevance 0, left out",
  "without_labels": "points without labels",
  "without_points": "labels without training points",
  "filter_pairs": "filter pairs",
  "filter_duplicates": "duplicate filter pairs, merged",
  "query_edges": "edges to training points",
  "label_edges": "edges to labels",
}
# What is only worth a line when there is any.
_ONLY_IF_ANY = {"empty_texts", "duplicates", "zeros", "filter_duplicates"}


def is_prepared(folder: Path) -> bool:
  """Whether a folder is a prepared one, sound or damaged."""
  if (folder / "labels.texts.npy").is_file():
    return True
  try:
    return json.loads((folder / FILE_NAME).read_bytes()).get("format") == FORMAT
  except (OSError, ValueError, AttributeError):
    return False


def read_manifest(folder: str | Path) -> dict:
  """The manifest of a prepared folder.

  Raises:
    DataError: there is none, it cannot be read, or it is of another version.
  """
  path = Path(folder) / FILE_NAME
  try:
    manifest = json.loads(path.read_bytes())
  except FileNotFoundError:
    raise DataError(f"{folder}: not a prepared folder ({FILE_NAME} is missing)") from None
  except OSError as error:
    raise DataError(f"{path}: cannot be read ({error.strerror})") from None
  except ValueError:
    raise DataError(f"{path}: expected JSON; prepare the data again") from None
  if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
    raise DataError(f"{path}: not the manifest of a prepared folder")
  if manifest.get("version") != VERSION:
    found = manifest.get("version")
    raise DataError(f"{path}: expected format version {VERSION}, found {found}; prepare the data again")
  return manifest


def write_manifest(folder: Path, manifest: dict) -> None:
  """Writes the manifest; the last file to be written into a folder."""
  text = json.dumps({"format": FORMAT, "version": VERSION, **manifest}, indent=1, ensure_ascii=False)
  (folder / FILE_NAME).write_text(text + "\n", encoding="utf-8")


def summary(manifest: dict) -> str:
  """What `prepare` counted, as an aligned table with one column for each group of texts."""
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
