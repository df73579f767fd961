"""Rows of tables (JSON, CSV, TSV, parquet, .arrow) and labelled lines as records, with their line numbers."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from xmc_jax.data.formats import arrow, separated
from xmc_jax.data.formats.columns import TableColumns
from xmc_jax.data.formats.json_records import is_array, items, objects
from xmc_jax.data.formats.lines import CHUNK_ROWS, PACKED, Lines
from xmc_jax.data.formats.source import DEFAULTS, Options, Place, refusal

# That tables may be named by; .arrow files never are.
SUFFIXES = (".jsonl", ".csv", ".tsv", ".parquet", ".json", ".xlsx")
TABBED = (".tsv", ".txt")  # whose quotation marks may be letters
JSON = (".jsonl", ".json")  # whose rows have keys of their own, so that one may lack some
ARROW = (".parquet", ".arrow")  # whose schemas name their columns
_LABELLED_LINE = re.compile(r"((?:__label__\S+\s+)+|\d+(?:,\d+)*\t|\t)(.*)")


def suffix(path: Path) -> str:
  """Returns the file's suffix, without the end of a compressed file's name."""
  return Path(path.stem if path.suffix in PACKED else path.name).suffix.lower()


def records(
  path: Path, columns: Sequence[str], notices: list[str], options: Options = DEFAULTS
) -> Iterator[tuple[Place, list[dict]]]:
  """Yields the rows of a table, some at a time, with at least these columns.

  Raises:
    DataError: the table is damaged, or has one of these columns twice.
  """
  match kind := suffix(path):
    case ".jsonl" | ".json":
      yield from items(path, options) if is_array(path) else objects(path, notices, options)
    case ".arrow" | ".parquet":
      yield from arrow.records(path, columns)
    case ".txt" if not has_header(path, options):
      yield from _labelled_lines(path, notices, options)
    case ".xlsx":
      rows = separated.sheet_rows(path, notices)
      yield from separated.with_names(path, rows, columns, options, notices, "row")
    case _:
      yield from separated.records(path, columns, notices, options, "," if kind == ".csv" else "\t")


def column_names(
  path: Path, notices: list[str], options: Options = DEFAULTS, may_be_empty: bool = False
) -> list[str]:
  """Returns the columns of a table: from its schema, its header, or the keys of its first records.

  Raises:
    DataError: the table is empty, and may not be.
  """
  if suffix(path) in ARROW:
    return list(arrow.schema(path).names)
  names: dict[str, None] = {}
  num_rows = 0
  for _, rows in records(path, (), notices, options):
    names |= dict.fromkeys(chain.from_iterable(rows))
    num_rows += len(rows)
    if num_rows >= CHUNK_ROWS or (names and suffix(path) not in JSON):
      break
  if not names and not may_be_empty:
    raise refusal(path, 1, "at least one row", "an empty table")
  return list(names)


def resolved(path: Path, names: TableColumns, options: Options) -> dict[str, str]:
  """Returns the options that read a table as it was read, without guesses; none of one without names."""
  if suffix(path) == ".txt" and not has_header(path, options):
    return {}
  found = {"text": "+".join(names.texts), "label_column": names.labels[0] if len(names.labels) == 1 else ""}
  return {**found, "quoting": separated.quoting(path, options, "\t")} if suffix(path) in TABBED else found


def has_header(path: Path, options: Options) -> bool:
  """Returns whether a .txt file is a table with tabs, as Excel saves one: its first line is not labelled."""
  with Lines(path, [], options) as lines:
    return any("\t" in text and not _LABELLED_LINE.fullmatch(f"{text} ") for text in lines.take_text()[:1])


def _labelled_lines(path: Path, notices: list[str], options: Options) -> Iterator[tuple[Place, list[dict]]]:
  """Yields lines of fastText ("__label__a __label__b words") or of PECOS' text2text ("0,3<tab>words")."""
  with Lines(path, notices, options) as lines:
    for first, texts in lines.chunks():
      place = Place(path, range(first, first + len(texts)))
      records = []
      for row, text in enumerate(texts):
        parts = _LABELLED_LINE.fullmatch(f"{text} ")
        if parts is None:
          raise place.refuse(row, "labels and a text, as '__label__NAME text' or '0,3<tab>text'", text)
        if "__label__" in parts[1]:
          labels = [word.removeprefix("__label__") for word in parts[1].split()]
        else:
          labels = [int(label) for label in parts[1].split(",") if label.strip()]
        records.append({"text": parts[2].strip(), "labels": labels})
      yield place, records
