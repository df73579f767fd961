"""Sparse matrices on disk: index files ("rows cols", then `id:value` lines) or scipy's .npz; their checks."""

import contextlib
import functools
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from xmc_jax.data.formats.lines import CHUNK_ROWS, Lines, expecting, open_bytes, reading, refuse_overpacked
from xmc_jax.data.formats.source import Pairs, Place, Rows, refusal

_LONGEST_COUNT = 18  # letters of a number of rows or columns


class IndexMatrix:
  """Reads an index file. `shape` comes from its header; `take` checks the number of rows against it."""

  unit = "line"

  def __init__(self, lines: Lines):
    self.path, self._lines = lines.path, lines

  @functools.cached_property
  def shape(self) -> tuple[int, int]:
    header = self._lines.take(1)
    fields = header[0].split() if header else []
    if len(fields) != 2 or not all(field.isdigit() and len(field) <= _LONGEST_COUNT for field in fields):
      raise refusal(self.path, 1, 'a header "rows columns"', header[0] if header else "the end of the file")
    return int(fields[0]), int(fields[1])

  def take(self, num: int) -> Pairs:
    """Returns some of the next rows, at most `num`; none after the last."""
    num_rows = self.shape[0]
    first = self._lines.taken + 1  # the header is line 1
    wanted = min(num, num_rows + 2 - first)
    lines = self._lines.take(wanted)
    done = self._lines.taken - 1
    if wanted and not lines:
      raise refusal(self.path, 1, f"a header that counts {done} rows, as the file has", f"{num_rows}")
    if done == num_rows and self._lines.take(1):
      raise refusal(self.path, self._lines.taken, f"the end of the file after {num_rows} rows")
    return parse_pairs(lines, Place(self.path, range(first, first + len(lines))))


class NpzMatrix:
  """Reads a scipy matrix, which is in memory as CSR."""

  unit = "row"

  def __init__(self, path: Path):
    self.path = path
    with expecting(path, "a matrix saved by scipy.sparse.save_npz"), reading(path), open_bytes(path) as file:
      refuse_overpacked(path, file)
      self._matrix = _as_csr(sp.load_npz(file))
    self.shape = self._matrix.shape
    self._done = 0

  def take(self, num: int) -> Pairs:
    """Returns the next `num` rows, or the rest; none after the last."""
    first, end = self._done, min(self._done + num, self.shape[0])
    self._done = end
    offsets = self._matrix.indptr[first : end + 1]
    piece, counts = slice(offsets[0], offsets[-1]), np.diff(offsets).astype(np.int64)
    place = Place(self.path, range(first + 1, end + 1), "row")
    with np.errstate(over="ignore"):  # values too large for float32 become infinite, and are refused later
      values = self._matrix.data[piece].astype(np.float32)
    return Pairs(counts, self._matrix.indices[piece].astype(np.int64), values, place)


def _as_csr(matrix: sp.spmatrix | sp.sparray) -> sp.csr_matrix:
  if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
    raise ValueError(f"{matrix.ndim} dimensions, data of type {matrix.dtype}")
  matrix = sp.csr_matrix(matrix)
  if np.any(matrix.indptr[1:] < matrix.indptr[:-1]):  # scipy takes a difference, which may overflow
    raise ValueError("indptr decreases")
  matrix.check_format()
  return matrix


@contextlib.contextmanager
def open_matrix(path: Path, notices: list[str]) -> Iterator[IndexMatrix | NpzMatrix]:
  """Opens a matrix in either format, which its name tells."""
  if ".npz" in path.suffixes:
    yield NpzMatrix(path)
  else:
    with Lines(path, notices) as lines:
      yield IndexMatrix(lines)


def matrix_chunks(
  path: Path, shape: tuple[int, int], what: tuple[str, str], notices: list[str]
) -> Iterator[Pairs]:
  """Yields all rows of a matrix that must have this shape; `what` names rows and columns in errors."""
  with open_matrix(path, notices) as matrix:
    for found, wanted, name in zip(matrix.shape, shape, what, strict=True):
      if found != wanted:
        raise refusal(path, 1, f"{wanted} {name}", f"{found}", matrix.unit)
    while len((pairs := matrix.take(CHUNK_ROWS)).counts):
      yield pairs


def points(
  texts: Iterator[list[str]], text_path: Path, targets: Path, num_labels: int, notices: list[str]
) -> Iterator[Rows]:
  """Yields points: joins a file of texts with the matrix of their targets, row by row."""
  with open_matrix(targets, notices) as matrix:
    num_rows, num_columns = matrix.shape
    if num_columns != num_labels:
      expected = f"{num_labels} columns, one for each label text"
      raise refusal(targets, 1, expected, f"{num_columns}", matrix.unit)
    done = 0
    for chunk in texts:
      while chunk:
        pairs = matrix.take(len(chunk))
        num = len(pairs.counts)
        if not num:
          expected = f"the end of the file, as {targets.name} has {num_rows} rows"
          raise refusal(text_path, num_rows + 1, expected, chunk[0])
        yield Rows(chunk[:num], pairs, num_rows)
        chunk, done = chunk[num:], done + num
    if done < num_rows:
      raise refusal(text_path, done + 1, f"another text, as {targets.name} has {num_rows} rows", "the end")


def parse_pairs(lines: list[bytes], place: Place) -> Pairs:
  """Parses lines of `id:value id:value ...`."""
  counts: list[int] = []
  ids = array("q")
  values: list[float] = []
  for row, line in enumerate(lines):
    num_before = len(ids)
    for word in line.split():
      column, _, value = word.replace(b"_", b"?").partition(b":")  # 1_000 is a number for Python alone
      try:
        ids.append(int(column))
        values.append(float(value))
      except (ValueError, OverflowError):
        raise place.refuse(row, 'entries "id:value" with a whole number as id', word) from None
    counts.append(len(ids) - num_before)
  with np.errstate(over="ignore"):  # values too large for float32 become infinite, and are refused later
    relevances = np.array(values, np.float32)
  return Pairs(np.array(counts, np.int64), np.frombuffer(ids, np.int64), relevances, place)


def cleaned(pairs: Pairs, num_columns: int, tally: Counter) -> Pairs:
  """Returns the rows with sorted, distinct columns and positive values.

  The tally's 'duplicates' counts merged entries (the larger value is kept), and its 'zeros' entries left out
  (a relevance of 0 is not a label).

  Raises:
    DataError: an id out of range, a value that is NaN, infinite or negative.
  """
  rows = np.repeat(np.arange(len(pairs.counts)), pairs.counts)
  outside = (pairs.ids < 0) | (pairs.ids >= num_columns)
  _refuse_first(pairs, rows, outside, f"an id in [0, {num_columns})", pairs.ids)
  wrong = ~(np.isfinite(pairs.values) & (pairs.values >= 0))
  _refuse_first(pairs, rows, wrong, "a relevance that is finite and not negative", pairs.values)

  keys, ids, values = rows * num_columns + pairs.ids, pairs.ids, pairs.values
  if np.any(keys[1:] <= keys[:-1]):
    order = np.argsort(keys, kind="stable")
    first = np.flatnonzero(np.diff(keys[order], prepend=-1))
    tally["duplicates"] += len(keys) - len(first)
    values = np.maximum.reduceat(values[order], first)
    rows, ids = rows[order][first], ids[order][first]
  positive = values > 0
  if not positive.all():
    tally["zeros"] += int((~positive).sum())
    rows, ids, values = rows[positive], ids[positive], values[positive]
  return Pairs(np.bincount(rows, minlength=len(pairs.counts)), ids, values, pairs.place)


def _refuse_first(
  pairs: Pairs, rows: np.ndarray, wrong: np.ndarray, expected: str, found: np.ndarray
) -> None:
  if wrong.any():
    at = int(np.argmax(wrong))
    raise pairs.place.refuse(int(rows[at]), expected, str(found[at]))
