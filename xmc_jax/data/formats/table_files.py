"""Rows of tables (JSON, CSV, TSV, parquet, .arrow) and labelled lines as records, with their line numbers.

At most CHUNK_BYTES plus one row (MAX_LINE_BYTES) are in memory at a time; for parquet, plus BATCH_ROWS rows.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, NamedTuple

from xmc_jax.data.formats import arrow_streams
from xmc_jax.data.formats.arrow_rows import BATCH_ROWS, check_installed, record_chunks, refuse_too_many_rows
from xmc_jax.data.formats.json_records import is_array, items, objects
from xmc_jax.data.formats.lines import (
  CHUNK_BYTES,
  CHUNK_ROWS,
  MAX_LINE_BYTES,
  PACKED,
  Lines,
  open_bytes,
  reading,
)
from xmc_jax.data.formats.source import DEFAULTS, Options, Place, excerpt, one_line, refusal
from xmc_jax.errors import DataError

if TYPE_CHECKING:
  import pyarrow as pa
  from pyarrow.parquet import ParquetFile

SUFFIXES = (".jsonl", ".csv", ".tsv", ".parquet", ".json")  # that may be named; .arrow files never are
_LABELLED_LINE = re.compile(r"((?:__label__\S+\s+)+|\d+(?:,\d+)*\t|\t)(.*)")
_DELIMITERS = (";", "\t", "|", ",")  # of CSV files whose header does not have the usual one
_EXCEL_MARK = re.compile("(?i)sep=(.)")  # a first line that names the delimiter
_QUOTED = re.compile('"(?:[^"]|"")*"')


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
  if (schema := _schema(path)) is not None:
    _refuse_twice(path, schema.names, columns)
  match suffix(path):
    case ".jsonl" | ".json":
      yield from items(path) if is_array(path) else objects(path, notices, options)
    case ".arrow":
      yield from arrow_streams.records(path, columns)
    case ".parquet":
      yield from _parquet(path, columns)
    case ".txt":
      yield from _labelled_lines(path, notices, options)
    case _:
      yield from _separated(path, columns, notices, options)


def _refuse_twice(path: Path, names: Sequence[str], columns: Sequence[str]) -> None:
  if twice := next((name for name in columns if names.count(name) > 1), ""):
    raise DataError(f"{path}: expected one column {excerpt(twice)}, found {names.count(twice)}; rename one")


def column_names(path: Path, notices: list[str], options: Options = DEFAULTS) -> list[str]:
  """Returns the columns of a table: from its schema, its header, or the keys of its first records."""
  if (schema := _schema(path)) is not None:
    return list(schema.names)
  for _, rows in records(path, (), notices, options):
    if rows:
      return list(dict.fromkeys(chain.from_iterable(rows)))
  raise refusal(path, 1, "at least one row", "an empty table")


def hub_metadata(path: Path) -> bytes:
  """Returns what Hugging Face's libraries wrote into a table's schema, as JSON; b"" if they wrote nothing."""
  schema = _schema(path)
  return b"" if schema is None else (schema.metadata or {}).get(b"huggingface", b"")


def _schema(path: Path) -> "pa.Schema | None":
  """Returns the schema of a table whose format has one."""
  if suffix(path) == ".arrow":
    return arrow_streams.schema(path)
  if suffix(path) != ".parquet":
    return None
  with open_bytes(path) as file:
    return _open_parquet(path, file).schema_arrow


def _open_parquet(path: Path, file: BinaryIO) -> "ParquetFile":
  check_installed(path)
  import pyarrow.parquet

  try:
    return pyarrow.parquet.ParquetFile(file)
  except Exception as error:  # a damaged file can fail in any of the layers
    raise DataError(f"{path}: expected a parquet file ({one_line(error)})") from None


def _parquet(path: Path, columns: Sequence[str]) -> Iterator[tuple[Place, list[dict]]]:
  done = 0
  with open_bytes(path) as file:
    for rows in record_chunks(path, "parquet", _parquet_batches(path, file, columns)):
      yield Place(path, range(done + 1, done + 1 + len(rows)), "row"), rows
      done += len(rows)


def _parquet_batches(path: Path, file: BinaryIO, columns: Sequence[str]) -> Iterator["pa.RecordBatch"]:
  table = _open_parquet(path, file)
  refuse_too_many_rows(table.metadata.num_rows, path.stat().st_size)
  yield from table.iter_batches(BATCH_ROWS, columns=list(columns) or None)


class _Dialect(NamedTuple):
  """Holds how a CSV or TSV file is read: its delimiter, the quoting of `csv`, lines before the header."""

  delimiter: str
  quoting: Literal[0, 3]  # QUOTE_MINIMAL or QUOTE_NONE
  num_skipped: int
  notices: tuple[str, ...]


@lru_cache
def _dialect(path: Path, mtime_ns: int, options: Options) -> _Dialect:
  """Finds the dialect of a CSV or TSV file.

  Quotation marks are letters in a file with tabs if every line has as many as the header, and most cells that
  begin with a mark are not quoted as a whole. No file with line breaks in cells looks like this.
  """
  notices = []
  usual = "\t" if suffix(path) == ".tsv" else ","
  with Lines(path, [], options) as lines:
    texts = (text for _, chunk in lines.chunks() for text in chunk)
    header = next(texts, "")
    named = _EXCEL_MARK.fullmatch(header)
    if named:
      header = next(texts, "")
    others = (mark for mark in (usual, *_DELIMITERS) if mark in header)
    delimiter = named[1] if named else next(others, usual)
    if delimiter != usual:
      notices.append(f"{path.name}: columns are separated by {excerpt(delimiter)}")
    are_letters = options.quoting == "none"
    if options.quoting == "auto" and delimiter == "\t" and _has_letters(path, chain([header], texts)):
      are_letters = True
      change = "(change with --config.data.quoting)"
      notices.append(
        f"{path.name}: quotation marks are letters, as some open a cell and do not end it {change}"
      )
  quoting: Literal[0, 3] = csv.QUOTE_NONE if are_letters else csv.QUOTE_MINIMAL
  return _Dialect(delimiter, quoting, int(bool(named)), tuple(notices))


def _has_letters(path: Path, lines: Iterator[str]) -> bool:
  """Returns whether quotation marks are letters; see `_dialect`."""
  width = whole = odd = odd_line = 0
  for number, line in enumerate(lines, 1):
    width = width or line.count("\t")
    if line and line.count("\t") != width:
      return False
    if '"' in line:
      opened = [cell for cell in line.split("\t") if cell.startswith('"')]
      ended = sum(map(bool, map(_QUOTED.fullmatch, opened)))
      whole, odd = whole + ended, odd + len(opened) - ended
      odd_line = odd_line or number * (len(opened) > ended)
  if 0 < odd <= whole:
    sets = "set --config.data.quoting=none if quotation marks are letters, else minimal"
    raise refusal(path, odd_line, f"a quoted cell to end with a quotation mark; {sets}")
  return odd > 0


def _separated(
  path: Path, columns: Sequence[str], notices: list[str], options: Options
) -> Iterator[tuple[Place, list[dict]]]:
  with reading(path):
    dialect = _dialect(path, path.stat().st_mtime_ns, options)
  notices += dialect.notices
  with Lines(path, notices, options) as lines:
    rows = _numbered(lines, dialect)
    header = next(rows, None)
    if header is None:
      return
    names = header[1]
    if _is_headerless(names, options):
      names, rows = [str(number) for number in range(1, len(names) + 1)], chain([header], rows)
    _refuse_twice(path, names, columns)
    for chunk in _chunks(rows):
      place = Place(path, [number for number, *_ in chunk])
      for row, (_, cells, _) in enumerate(chunk):
        if len(cells) != len(names):
          raise place.refuse(row, f"{len(names)} columns, as in the header", f"{len(cells)}")
      yield place, [dict(zip(names, cells)) for _, cells, _ in chunk]


def _is_headerless(header: list[str], options: Options) -> bool:
  """Returns whether the options call columns by numbers, from 1, which the first line does not have."""
  called = [*options.text.split("+"), *filter(None, [options.label_column])]
  return all(map(str.isdecimal, called)) and not set(called) <= set(header)


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


def _chunks(rows: Iterator[tuple[int, list[str], int]]) -> Iterator[list[tuple[int, list[str], int]]]:
  """Yields lists of rows, each of about CHUNK_BYTES and at most CHUNK_ROWS rows."""
  chunk, size = [], 0
  for row in rows:
    chunk.append(row)
    size += row[2]
    if size >= CHUNK_BYTES or len(chunk) >= CHUNK_ROWS:
      yield chunk
      chunk, size = [], 0
  if chunk:
    yield chunk


def _numbered(lines: Lines, dialect: _Dialect) -> Iterator[tuple[int, list[str], int]]:
  """Yields rows as (number of the first line, cells, letters). Quoted cells may span lines.

  Empty lines are skipped.
  """
  number = size = 0
  lines.take(dialect.num_skipped)

  def plain() -> Iterator[str]:
    nonlocal size
    for _, chunk in lines.chunks():
      for line in chunk:
        size += len(line) + 1
        if size > MAX_LINE_BYTES:
          expected = f"a row of at most {MAX_LINE_BYTES >> 20} MiB (is a quote never closed?)"
          raise refusal(lines.path, number, expected, line)
        yield line + "\n"

  csv.field_size_limit(MAX_LINE_BYTES)
  reader = csv.reader(plain(), delimiter=dialect.delimiter, quoting=dialect.quoting, strict=True)
  while True:
    number, size = dialect.num_skipped + reader.line_num + 1, 0
    try:
      cells = next(reader, None)
    except csv.Error as error:
      hint = f"({error}; if quotation marks are letters, --config.data.quoting=none)"
      raise refusal(lines.path, number, f"separated columns {hint}") from None
    if cells is None:
      return
    if cells:
      yield number, cells, size
