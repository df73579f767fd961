"""CSV and TSV files, and the first sheet of Excel workbooks, as records with their line or row numbers."""

import csv
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from xmc_jax.data.formats.columns import refuse_twice
from xmc_jax.data.formats.json_records import text_of
from xmc_jax.data.formats.lines import (
  CHUNK_BYTES,
  CHUNK_ROWS,
  MAX_LINE_BYTES,
  Lines,
  expecting,
  open_bytes,
  reading,
  refuse_overpacked,
)
from xmc_jax.data.formats.source import Options, Place, excerpt, refusal
from xmc_jax.errors import UserError

_DELIMITERS = (";", "\t", "|", ",")
_NO_DELIMITER = "\x1f"
_SAMPLE_LINES = 100  # that tell the delimiter
_EXCEL_MARK = re.compile("(?i)sep=(.)")  # a first line that names the delimiter
_MOST_ROWS = 1 << 20  # of a sheet in Excel; a damaged row may claim any number
_QUOTED = re.compile('"(?:[^"]|"")*"')


def records(
  path: Path, columns: Sequence[str], notices: list[str], options: Options, usual: str
) -> Iterator[tuple[Place, list[dict]]]:
  """Yields the rows of a CSV or TSV file, some at a time; `usual` is the delimiter of its suffix."""
  csv.field_size_limit(MAX_LINE_BYTES)
  with reading(path):
    dialect = _dialect(path, path.stat().st_mtime_ns, options, usual)
  notices += dialect.notices
  with Lines(path, notices, options) as lines:
    yield from with_names(path, _numbered(lines, dialect, notices), columns, options, notices)


def with_names(
  path: Path,
  rows: Iterator[tuple[int, list[str], int]],
  columns: Sequence[str],
  options: Options,
  notices: list[str],
  unit: str = "line",
) -> Iterator[tuple[Place, list[dict]]]:
  """Yields rows, given as (number, cells, letters), as records; the first has the names of the columns."""
  header = next(rows, None)
  if header is None:
    return
  names = header[1]
  called = [*options.text.split("+"), *filter(None, [options.label_column])]
  if all(map(str.isdecimal, called)) and not set(called) <= set(names):  # columns are numbers, from 1
    if all(map(str.isidentifier, names)):
      notices.append(f"{path.name}: the first row is read as data: {', '.join(map(excerpt, names))}")
    names, rows = [str(number) for number in range(1, len(names) + 1)], chain([header], rows)
  refuse_twice(path, names, columns)
  for chunk in _chunks(rows):
    place = Place(path, [number for number, *_ in chunk], unit)
    for row, (_, cells, _) in enumerate(chunk):
      if len(cells) != len(names):
        raise place.refuse(row, f"{len(names)} columns, as in the header", f"{len(cells)}")
    yield place, [dict(zip(names, cells)) for _, cells, _ in chunk]


def _num_swallowed(cells: list[str], delimiter: str) -> int:
  """Returns how many rows a row seems to hold besides its own, because a quotation mark was never closed.

  Its first line and most others then have all columns. In prose, a space follows a comma.
  """
  text = delimiter.join(cells)
  if "\n" not in text or len(cells) < 2:
    return 0
  mark = re.escape(delimiter)
  row = re.compile(f"[^{mark}]*(?:{mark}[^{mark}\\s][^{mark}]*){{{len(cells) - 1}}}")
  lines = text.split("\n")
  are_rows = [row.fullmatch(line) is not None for line in lines]
  return sum(are_rows) - 1 if are_rows[0] and 2 * sum(are_rows) > len(lines) else 0


class _Dialect(NamedTuple):
  """Holds how a CSV or TSV file is read: its delimiter, the quoting of `csv`, lines before the header."""

  delimiter: str
  quoting: Literal[0, 3]  # QUOTE_MINIMAL or QUOTE_NONE
  num_skipped: int
  notices: tuple[str, ...]


@lru_cache
def _dialect(path: Path, mtime_ns: int, options: Options, usual: str) -> _Dialect:
  """Finds the dialect of a CSV or TSV file: the delimiter that gives the first rows the most columns.

  Quotation marks are letters in a file with tabs if every line has as many as the header, and most cells that
  begin with a mark are not quoted as a whole. No file with line breaks in cells looks like this.
  """
  notices = []
  with Lines(path, [], options) as lines:
    chunks = lines.chunks()
    _, first = next(chunks, (1, [""]))
    named = _EXCEL_MARK.fullmatch(first[0])
    texts = chain(first[bool(named) :], (text for _, chunk in chunks for text in chunk))
    # In a table of one column, a text may hold the usual delimiter.
    others = [mark for mark in (usual, *_DELIMITERS) if mark in first[0]] or [usual, _NO_DELIMITER]
    are_letters = options.quoting == "none"
    num_columns = partial(_num_columns, first[:_SAMPLE_LINES], are_letters)
    delimiter = named[1] if named else max(others, key=num_columns, default=usual)
    if delimiter not in (usual, _NO_DELIMITER):
      notices.append(f"{path.name}: columns are separated by {excerpt(delimiter)}")
    if options.quoting == "auto" and delimiter == "\t" and _has_letters(path, texts):
      are_letters = True
      change = "(change with --config.data.quoting)"
      notices.append(
        f"{path.name}: quotation marks are letters, as some open a cell and do not end it {change}"
      )
  quoting: Literal[0, 3] = csv.QUOTE_NONE if are_letters else csv.QUOTE_MINIMAL
  return _Dialect(delimiter, quoting, int(bool(named)), tuple(notices))


def quoting(path: Path, options: Options) -> str:
  """Returns how the quotation marks of a file with tabs are read: 'minimal' or 'none'."""
  found = _dialect(path, path.stat().st_mtime_ns, options, "\t").quoting
  return "none" if found == csv.QUOTE_NONE else "minimal"


def _num_columns(lines: list[str], are_letters: bool, delimiter: str) -> int:
  """Returns how many columns all rows in these lines have; 0 if they differ. The last may be cut short."""
  quoting: Literal[0, 3] = csv.QUOTE_NONE if are_letters else csv.QUOTE_MINIMAL
  reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
  widths: set[int] = set()
  with suppress(csv.Error):
    widths.update(len(row) for row in reader if row)
  return widths.pop() if len(widths) == 1 and reader.line_num == len(lines) else 0


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
    sets = "set --config.data.quoting=none if quotation marks are letters, else --config.data.quoting=minimal"
    raise refusal(path, odd_line, f"a quoted cell to end with a quotation mark; {sets}")
  return odd > 0


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


def _numbered(lines: Lines, dialect: _Dialect, notices: list[str]) -> Iterator[tuple[int, list[str], int]]:
  """Yields rows as (number of the first line, cells, letters). Quoted cells may span lines.

  Empty lines are skipped.
  """
  number = size = num_swallowed = first = 0
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

  reader = csv.reader(plain(), delimiter=dialect.delimiter, quoting=dialect.quoting, strict=True)
  while True:
    number, size = dialect.num_skipped + reader.line_num + 1, 0
    try:
      cells = next(reader, None)
    except csv.Error as error:
      hint = f"({error}; if quotation marks are letters, --config.data.quoting=none)"
      raise refusal(lines.path, number, f"separated columns {hint}") from None
    if cells is None:
      break
    if num := _num_swallowed(cells, dialect.delimiter):
      num_swallowed, first = num_swallowed + num, first or number
    if cells:
      yield number, cells, size
  if num_swallowed:
    cure = "close its quotation mark, or set --config.data.quoting=none if it is a letter"
    notices.append(
      f"{lines.path.name}: line {first} seems to begin a cell that holds {num_swallowed:,} more rows; {cure}"
    )


def sheet_rows(path: Path, notices: list[str]) -> Iterator[tuple[int, list[str], int]]:
  """Yields the rows that are not empty as (number, cells, letters), as wide as the first or wider.

  Raises:
    UserError: openpyxl is not installed.
    DataError: the file is damaged.
  """
  try:
    import openpyxl
  except ImportError as error:
    raise UserError(f"{path}: .xlsx files need openpyxl ({error}): pip install openpyxl") from None
  with expecting(path, "an Excel workbook"), open_bytes(path) as file:
    refuse_overpacked(path, file)
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # about what is no cell
      sheet, *others = openpyxl.load_workbook(file, read_only=True, data_only=True).worksheets
    if others:
      notices.append(f"{path.name}: only the first of {1 + len(others)} sheets is read, {sheet.title!r}")
    sheet.reset_dimensions()  # which some programs write wrongly
    width = 0
    for number, values in enumerate(sheet.iter_rows(max_row=_MOST_ROWS, values_only=True), 1):
      cells = [str(value) if (text := text_of(value)) is None else text for value in values]
      filled = max((at for at, cell in enumerate(cells, 1) if cell), default=0)
      width = width or filled
      if filled:
        cells = [*cells[: max(filled, width)], *[""] * (width - len(cells))]
        yield number, cells, sum(map(len, cells))
