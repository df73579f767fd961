"""Turns record batches of Arrow and Parquet files into records, after a check of their types and sizes."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from xmc_jax.data.formats.lines import CHUNK_BYTES, CHUNK_ROWS, MAX_LINE_BYTES
from xmc_jax.data.formats.source import excerpt, one_line, refusal
from xmc_jax.errors import DataError, UserError

if TYPE_CHECKING:
  import pyarrow as pa

BATCH_ROWS = 256
_NUMBER_BYTES = 8
# In a byte of a file. A column of nulls takes no space at all, one of equal values next to none; both may
# claim any number of rows.
_MOST_ROWS = 8
_VIEW_BYTES = 16  # of which the first four are the length of a text


def check_installed(path: Path) -> None:
  """Raises UserError if pyarrow, which this file needs, is not installed."""
  try:
    import pyarrow  # noqa: F401
  except ImportError as error:
    line = f'{path}: parquet and Arrow files need pyarrow ({error}): pip install "xmc_jax[parquet]"'
    raise UserError(line) from None


def refuse_too_many_rows(rows: int, size: int) -> None:
  """Raises ValueError if a file of `size` bytes claims more rows than texts could be in it."""
  if rows > _MOST_ROWS * size:
    raise ValueError(f"found {rows:,} rows in {size:,} bytes")


def record_chunks(path: Path, kind: str, batches: Iterator["pa.RecordBatch"]) -> Iterator[list[dict]]:
  """Yields the rows of these batches as records: about CHUNK_BYTES at a time, at most CHUNK_ROWS.

  Args:
    path: the file, for messages.
    kind: its format, for messages.
    batches: the columns that are needed, and no others.

  Raises:
    DataError: reading fails, a column has another type than texts, numbers or lists of them, or a row is
      longer than MAX_LINE_BYTES. A short file may hold one long text that every row points to.
  """
  rows: list[dict] = []
  size = done = 0
  try:
    for batch in batches:
      for begin in range(0, batch.num_rows, BATCH_ROWS):
        part = batch.slice(begin, BATCH_ROWS)
        sizes = _row_sizes(path, part)
        if (too_long := sizes > MAX_LINE_BYTES).any():
          number = done + len(rows) + int(np.argmax(too_long)) + 1
          raise refusal(path, number, f"a row of at most {MAX_LINE_BYTES >> 20} MiB", unit="row")
        for first, end in _pieces(sizes):
          rows += part.slice(first, end - first).to_pylist()
          size += int(sizes[first:end].sum())
          if size >= CHUNK_BYTES or len(rows) >= CHUNK_ROWS:
            yield rows
            rows, size, done = [], 0, done + len(rows)
  except DataError:
    raise
  except Exception as error:  # a damaged file can fail in any of the layers
    where = f"{path}, after row {done + len(rows)}"
    raise DataError(f"{where}: expected more {kind} data ({one_line(error)})") from None
  if rows:
    yield rows


def _pieces(sizes: np.ndarray) -> Iterator[tuple[int, int]]:
  """Yields (first, end) of rows that take about CHUNK_BYTES together, or of one longer row."""
  ends = np.cumsum(sizes)
  first = 0
  while first < len(sizes):
    before = ends[first - 1] if first else 0
    end = max(int(np.searchsorted(ends, before + CHUNK_BYTES, side="right")), first + 1)
    yield first, end
    first = end


def _row_sizes(path: Path, batch: "pa.RecordBatch") -> np.ndarray:
  """Returns the bytes of each row, `[rows]` int64, without making Python objects of any."""
  sizes = np.zeros(batch.num_rows, np.int64)
  for name, column in zip(batch.schema.names, batch.columns):
    found = _sizes(column)
    if found is None:
      expected = f"texts, numbers or lists of them in column {excerpt(name)}"
      raise DataError(f"{path}: expected {expected}, found {excerpt(str(column.type))}")
    sizes += found
  return sizes


def _sizes(array: Any, may_be_list: bool = True) -> np.ndarray | None:
  """Returns the bytes of each value of an Arrow array; None for a type that is not read."""
  import pyarrow.compute
  import pyarrow.types as types

  kind = array.type
  if types.is_string(kind) or types.is_large_string(kind):
    return _filled(pyarrow.compute.binary_length(array))
  if types.is_string_view(kind):
    lengths = np.frombuffer(array.buffers()[1] or b"", np.int32)[:: _VIEW_BYTES // 4]
    return np.where(_is_valid(array), lengths[array.offset :][: len(array)], 0).astype(np.int64)
  if types.is_primitive(kind) or types.is_decimal(kind) or types.is_null(kind):
    return np.full(len(array), _NUMBER_BYTES, np.int64)
  if types.is_dictionary(kind) and (values := _sizes(array.dictionary, may_be_list=False)) is not None:
    indices = _filled(array.indices)
    return values[indices] if len(values) else np.zeros(len(array), np.int64)
  if not may_be_list or not types.is_list(kind) | types.is_large_list(kind) | types.is_fixed_size_list(kind):
    return None
  counts = _filled(pyarrow.compute.list_value_length(array))
  values = _sizes(array.flatten(), may_be_list=False)  # without the values below a null
  if values is None:
    return None
  ends = np.cumsum(counts)
  total = np.concatenate([[0], np.cumsum(values)])
  return total[ends] - total[ends - counts] + _NUMBER_BYTES * counts


def _filled(array: Any) -> np.ndarray:
  """Returns an integer array as int64, 0 in place of a null."""
  return array.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def _is_valid(array: Any) -> np.ndarray:
  return array.is_valid().to_numpy(zero_copy_only=False)
