"""Rows of .jsonl, .csv, .tsv and .parquet files as records, with their line numbers."""

import csv
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from xmc_jax.contract import DataError
from xmc_jax.data.formats.lines import CHUNK_ROWS, Lines, open_bytes
from xmc_jax.data.formats.raw_json import objects
from xmc_jax.data.formats.source import Place, refusal

SUFFIXES = (".jsonl", ".csv", ".tsv", ".parquet")
_MAX_CELL = 1 << 30


def suffix(path: Path) -> str:
  """The file's kind: its suffix, a `.gz` behind it left out."""
  return Path(path.name.removesuffix(".gz")).suffix.lower()


def records(path: Path, columns: Sequence[str], notices: list[str]) -> Iterator[tuple[Place, list[dict]]]:
  """The rows of a table, some at a time: at least these columns of each."""
  match suffix(path):
    case ".jsonl":
      yield from objects(path, notices)
    case ".parquet":
      yield from _parquet(path, columns)
    case kind:
      yield from _separated(path, "\t" if kind == ".tsv" else ",", notices)


def column_names(path: Path, notices: list[str]) -> list[str]:
  """The columns of a table: its schema, its header, or the keys of its first record."""
  if suffix(path) == ".parquet":
    with open_bytes(path) as file:
      return list(_open_parquet(path, file).schema_arrow.names)
  for _, rows in records(path, (), notices):
    if rows:
      return list(rows[0])
  raise refusal(path, 1, "at least one row", "an empty table")


def _open_parquet(path: Path, file):
  import pyarrow
  import pyarrow.parquet

  try:
    return pyarrow.parquet.ParquetFile(file)
  except (pyarrow.ArrowException, OSError, EOFError) as error:
    raise DataError(f"{path}: expected a parquet file ({_one_line(error)})") from None


def _parquet(path: Path, columns: Sequence[str]) -> Iterator[tuple[Place, list[dict]]]:
  import pyarrow

  done = 0
  with open_bytes(path) as file:
    try:
      for batch in _open_parquet(path, file).iter_batches(CHUNK_ROWS, columns=list(columns) or None):
        yield Place(path, range(done + 1, done + 1 + batch.num_rows), "row"), batch.to_pylist()
        done += batch.num_rows
    except (pyarrow.ArrowException, OSError, EOFError) as error:
      raise DataError(f"{path}, after row {done}: expected more parquet data ({_one_line(error)})") from None


def _one_line(error: Exception) -> str:
  return str(error).partition("\n")[0]


def _separated(path: Path, delimiter: str, notices: list[str]) -> Iterator[tuple[Place, list[dict]]]:
  csv.field_size_limit(_MAX_CELL)
  with Lines(path, notices) as lines:
    plain = (line + "\n" for _, chunk in lines.chunks() for line in chunk)
    reader = csv.reader(plain, delimiter=delimiter, strict=True)
    rows = _numbered(reader, path)
    header = next(rows, None)
    if header is None:
      return
    names = header[1]
    while chunk := list(itertools.islice(rows, CHUNK_ROWS)):
      place = Place(path, [number for number, _ in chunk])
      for row, (_, cells) in enumerate(chunk):
        if len(cells) != len(names):
          raise place.refuse(row, f"{len(names)} columns, as in the header", f"{len(cells)}")
      yield place, [dict(zip(names, cells)) for _, cells in chunk]


def _numbered(reader, path: Path) -> Iterator[tuple[int, list[str]]]:
  """Rows with the number of the line they start on (quoted cells may span lines); empty lines are no rows."""
  while True:
    number = reader.line_num + 1
    try:
      cells = next(reader, None)
    except csv.Error as error:
      raise refusal(path, number, f"separated columns ({error})") from None
    if cells is None:
      return
    if cells:
      yield number, cells
