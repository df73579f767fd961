"""Reads texts and labels that are Python objects: lists, arrays, columns of data frames, matrices."""

from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from xmc_jax.data.formats.source import EXCERPT_LENGTH, excerpt
from xmc_jax.errors import DataError

# How the labels of each text are given: a list of names or of ids, one name, one id, or a row of a matrix.
NAMES, IDS, NAME, ID, MATRIX = "names", "ids", "name", "id", "matrix"
SHOWN = {
  NAMES: "lists of names",
  IDS: "lists of ids",
  NAME: "one name per text",
  ID: "one id per text",
  MATRIX: "a matrix",
}
_ONE = {str: NAME, int: ID}
_MANY = {str: NAMES, int: IDS}
_IDS = np.iinfo(np.int64)


def shown(value: object) -> str:
  """Returns a short excerpt of a value, for a message; only texts are quoted."""
  if isinstance(value, str):
    return excerpt(value)
  text = " ".join(repr(value).split())
  return text if len(text) <= EXCERPT_LENGTH else f"{text[:EXCERPT_LENGTH]}..."


def items_of(values: Any, what: str) -> list:
  """Returns the items of a list, tuple, array, or column of a data frame.

  Raises:
    DataError: it has no items in an order, or has several dimensions; `what` is its name.
  """
  if isinstance(values, str | bytes | Mapping | Set) or not (
    hasattr(values, "__len__") and isinstance(values, Iterable)
  ):
    raise DataError(f"{what}: expected a list, an array or a column, found {shown(values)}")
  shape = getattr(values, "shape", (0,))
  if len(shape) != 1:
    kind = type(values).__name__
    raise DataError(f"{what}: expected one dimension, found a {kind} of shape {shape}; give one column of it")
  return list(values.tolist() if hasattr(values, "tolist") else values)


def texts_of(values: Any, what: str) -> list[str]:
  """Returns the items of a sequence of texts; refuses what `items_of` does, and an item that is no str."""
  texts = items_of(values, what)
  for row, text in enumerate(texts):
    if not isinstance(text, str):
      raise DataError(f"{what}[{row}]: expected a text (str), found {shown(text)}")
  return texts


class Labels(NamedTuple):
  """Holds labels as they were given.

  They are what `items_of` accepts, with a name, an id or a list of either for each text, None or NaN for no
  labels; or a matrix `[n, L]`, dense or sparse.
  """

  rows: Any
  num_rows: int  # n, the number of texts
  what: str = "labels"  # their name, for messages


class Flat(NamedTuple):
  """Holds lists of names or ids, one after the other, and the length of each."""

  kind: str
  items: list
  counts: np.ndarray

  def places(self) -> Iterator[tuple[int, Any]]:
    """Yields each item with its row."""
    return zip(np.repeat(np.arange(len(self.counts)), self.counts).tolist(), self.items)


def is_matrix(rows: Any) -> bool:
  """Returns whether labels are a matrix; an array of texts with two dimensions is lists of names."""
  if sp.issparse(rows):
    return True
  return len(getattr(rows, "shape", ())) == 2 and np.asarray(rows).dtype.kind not in "UO"


def column_names(rows: Any) -> list[str] | None:
  """Returns the names of a data frame's columns; None for other matrices."""
  names = getattr(rows, "columns", None)
  return None if names is None else list(map(str, names))


def flattened(labels: Labels) -> Flat:
  """Reads names or ids, one or a list for each text; refuses others, and more or fewer than texts."""
  given, what = labels.rows, labels.what
  of_array = isinstance(given, np.ndarray) and given.ndim == 2
  rows = list(map(_without_gap, list(given) if of_array else items_of(given, what)))
  check_lengths(labels, len(rows))
  if any(map(_key_type, rows)):
    kinds, lists = _ONE, [[] if row is None else [row] for row in rows]
  else:
    kinds = _MANY
    ordered = (sorted(row, key=str) if isinstance(row, Set) else row for row in rows)
    lists = [[] if row is None else items_of(row, f"{what}[{n}]") for n, row in enumerate(ordered)]
  flat = Flat("", list(chain.from_iterable(lists)), np.array(list(map(len, lists)), np.int64))
  kind = _one_type(flat, what, kinds)
  return flat._replace(kind=kinds[kind], items=list(map(kind, flat.items)))


def refuse_indicators(flat: Flat, what: str) -> None:
  """Raises DataError if lists of ids are rows of 0 and 1 instead: of one length, and some repeat a value."""
  length = int(flat.counts.max(initial=0))
  is_even = flat.kind == IDS and length >= 2 and (flat.counts == length).all()
  if is_even and set(flat.items) <= {0, 1}:
    sums = np.array(flat.items).reshape(-1, length).sum(axis=1)
    if length > 2 or (sums != 1).any():
      raise DataError(
        f"{what}: each row has {length} numbers, all 0 or 1, and lists are read as ids; give np.array(...) "
        "for a matrix, or ids that do not repeat"
      )


def _one_type(flat: Flat, what: str, kinds: Mapping[type, str]) -> type:
  """Returns the type of all items, str or int; refuses a mixture."""
  known = [found for found in map(_key_type, flat.items) if found]
  wanted = known[0] if known else str
  for row, label in flat.places():
    if _key_type(label) is not wanted:
      expected = SHOWN[kinds[wanted]] if known else "names (str) or ids (int)"
      raise DataError(f"{what}[{row}]: expected {expected}, found {shown(label)}")
    if wanted is int and not _IDS.min <= label <= _IDS.max:
      raise DataError(f"{what}[{row}]: id {shown(label)} takes more than 64 bits, with its sign; give names")
  return wanted


def _without_gap(row: Any) -> Any:
  """Returns None for a missing value; an int for a whole float, which ids become in a column with gaps."""
  if isinstance(row, float):
    return int(row) if row.is_integer() else None if row != row else row
  return None if type(row).__name__ == "NAType" else row  # of pandas


def _key_type(label: Any) -> type | None:
  """Returns str for a name, int for an id, None for anything else."""
  if isinstance(label, str):
    return str
  return int if isinstance(label, int | np.integer) and not isinstance(label, bool) else None


def check_lengths(labels: Labels, found: int) -> None:
  """Raises DataError unless there is one row for each text."""
  if found != labels.num_rows:
    raise DataError(
      f"{labels.what} has {found} rows, and there are {labels.num_rows} texts; give one for each"
    )


def as_csr(labels: Labels) -> sp.csr_matrix:
  """Returns a matrix as CSR float32 without zeros; refuses what is no relevance."""
  is_sparse = sp.issparse(labels.rows)
  matrix = sp.coo_matrix(labels.rows if is_sparse else np.asarray(labels.rows))
  values = matrix.data
  is_right = np.isfinite(values) & (values >= 0) if is_sparse else values == 1
  if not is_right.all():
    at = int(np.argmin(is_right))
    expected = "relevances of 0 or more" if is_sparse else "0 or 1"
    raise DataError(f"{labels.what}[{matrix.row[at]}]: expected {expected}, found {values[at]}")
  csr = matrix.tocsr().astype(np.float32)
  csr.eliminate_zeros()
  return csr
