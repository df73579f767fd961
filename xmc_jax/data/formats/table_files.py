"""Rows of .jsonl, .csv, .tsv, .parquet and .arrow files as records, with their line numbers.

At most CHUNK_BYTES plus one row (MAX_LINE_BYTES) are in memory at a time; for parquet, plus BATCH_ROWS rows.
"""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from xmc_jax.data.formats import arrow_streams
from xmc_jax.data.formats.arrow_rows import BATCH_ROWS, check_installed, record_chunks, refuse_too_many_rows
from xmc_jax.data.formats.json_records import objects
from xmc_jax.data.formats.lines import CHUNK_BYTES, CHUNK_ROWS, MAX_LINE_BYTES, Lines, open_bytes
from xmc_jax.data.formats.source import Place, one_line, refusal
from xmc_jax.errors import DataError

if TYPE_CHECKING:
  import pyarrow as pa
  from pyarrow.parquet import ParquetFile

SUFFIXES = (".jsonl", ".csv", ".tsv", ".parquet")  # of tables that may be named; .arrow files never are


def suffix(path: Path) -> str:
  """Returns the file's suffix, without a final `.gz`."""
  return Path(path.name.removesuffix(".gz")).suffix.lower()


def records(path: Path, columns: Sequence[str], notices: list[str]) -> Iterator[tuple[Place, list[dict]]]:
  """Yields the rows of a table, some at a time, with at least these columns."""
  match suffix(path):
    case ".jsonl" | ".json":
      yield from objects(path, notices)
    case ".arrow":
      yield from arrow_streams.records(path, columns)
    case ".parquet":
      yield from _parquet(path, columns)
    case kind:
      yield from _separated(path, "\t" if kind == ".tsv" else ",", notices)


def column_names(path: Path, notices: list[str]) -> list[str]:
  """Returns the columns of a table: from its schema, its header, or the keys of its first record."""
  if (schema := _schema(path)) is not None:
    return list(schema.names)
  for _, rows in records(path, (), notices):
    if rows:
      return list(rows[0])
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


def _separated(path: Path, delimiter: str, notices: list[str]) -> Iterator[tuple[Place, list[dict]]]:
  with Lines(path, notices) as lines:
    rows = _numbered(lines, delimiter)
    header = next(rows, None)
    if header is None:
      return
    names = header[1]
    for chunk in _chunks(rows):
      place = Place(path, [number for number, *_ in chunk])
      for row, (_, cells, _) in enumerate(chunk):
        if len(cells) != len(names):
          raise place.refuse(row, f"{len(names)} columns, as in the header", f"{len(cells)}")
      yield place, [dict(zip(names, cells)) for _, cells, _ in chunk]


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


def _numbered(lines: Lines, delimiter: str) -> Iterator[tuple[int, list[str], int]]:
  """Yields rows as (number of the first line, cells, letters). Quoted cells may span lines.

  Empty lines are skipped.
  """
  number = size = 0

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
  reader = csv.reader(plain(), delimiter=delimiter, strict=True)
  while True:
    number, size = reader.line_num + 1, 0
    try:
      cells = next(reader, None)
    except csv.Error as error:
      raise refusal(lines.path, number, f"separated columns ({error})") from None
    if cells is None:
      return
    if cells:
      yield number, cells, size
