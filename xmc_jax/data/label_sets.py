"""Numbers labels that come as Python objects (names, ids or a matrix), and returns them in the same form."""

import functools
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse as sp

from xmc_jax.data import label_values
from xmc_jax.data.label_values import ID, IDS, MATRIX, NAME, SHOWN, Flat, Labels, shown, texts_of
from xmc_jax.errors import DataError


class LabelSpace:
  """Maps labels as a user gives them to numbers 0 to L - 1, and back.

  Attributes:
    kind: how they are given: NAMES, IDS, NAME, ID or MATRIX.
    texts: the L label texts.
    keys: the name or id of each label, or of its column; None if an id or a column is the label's number.
  """

  def __init__(self, kind: str, texts: list[str], keys: list | None = None, like: Any = None):
    self.kind, self.texts, self.keys = kind, texts, keys
    self._like = like  # an empty matrix of the type that was given; None for other kinds

  @functools.cached_property
  def classes(self) -> np.ndarray:
    """Returns `[L]` names or ids, as given; the label texts if labels are numbers or columns."""
    if self.keys is not None and self.kind in (IDS, ID):
      return np.array(self.keys, np.int64)
    return np.array(self.texts, object)

  @classmethod
  def of(cls, labels: Labels, label_texts: Any = None, *more: Labels) -> "LabelSpace":
    """Returns the space of these labels.

    Labels of a matrix are its columns, and ids are positions in `label_texts`. Without `label_texts`, names
    and ids are sorted, and ids and columns without a name are named by their numbers.

    Args:
      labels: labels of the training texts.
      label_texts: all label texts; None if the labels' names or ids are all that there are.
      *more: labels of other texts, of the same kind.

    Raises:
      DataError: the labels are not understood, or do not fit `label_texts`.
    """
    texts = None if label_texts is None else texts_of(label_texts, "label_texts")
    if label_values.is_matrix(labels.rows):
      width = labels.rows.shape[1]
      if texts is not None and len(texts) != width:
        raise DataError(f"label_texts has {len(texts)} texts, and {labels.what} has {width} columns")
      names = label_values.column_names(labels.rows)
      return cls(MATRIX, texts or names or list(map(str, range(width))), names, _empty(labels.rows))
    flat = [label_values.flattened(part) for part in (labels, *more)]
    kind = flat[0].kind
    if texts is not None:
      return cls(kind, texts, None if kind in (IDS, ID) else texts)
    label_values.refuse_indicators(flat[0], labels.what)
    keys = sorted(set(chain.from_iterable(part.items for part in flat if part.kind == kind)))
    return cls(kind, [str(key) for key in keys], keys)

  def encode(self, labels: Labels, *, allow_unknown: bool = False) -> sp.csr_matrix:
    """Returns the labels as CSR `[n, L]` float32: the relevance of a matrix, else 1.

    Refuses labels of another kind, and those that are none of this space; if `allow_unknown`, names and ids
    that are none get columns L, L + 1, ...
    """
    if self.kind == MATRIX or label_values.is_matrix(labels.rows):
      return self._encoded_matrix(labels)
    flat = label_values.flattened(labels)
    if flat.kind != self.kind and flat.items:
      raise DataError(f"{labels.what}: expected {SHOWN[self.kind]}, found {SHOWN[flat.kind]}")
    numbers = self._numbers(flat, labels.what, allow_unknown)
    indptr = np.concatenate([[0], np.cumsum(flat.counts)])
    width = max([len(self.texts), *(number + 1 for number in numbers)])
    values = np.ones(len(numbers), np.float32)
    found = sp.csr_matrix((values, np.array(numbers, np.int64), indptr), (labels.num_rows, width))
    found.sum_duplicates()
    found.data[:] = 1
    return found

  def decode(self, chosen: sp.csr_matrix, best: np.ndarray) -> Any:
    """Returns labels in the form in which they were given.

    Args:
      chosen: CSR `[n, L]`, a stored entry for each label of a text, in any order.
      best: `[n]` the best label of each text, for kinds with one label per text; -1 gives None, or id -1.

    Returns:
      A list of lists, best first as stored; an array `[n]` of names or ids; or a matrix of 0 and 1.
    """
    if self.kind == MATRIX:
      return self._decoded_matrix(chosen)
    keys = range(len(self.texts)) if self.keys is None else self.keys
    if self.kind in (NAME, ID):
      none, kind = (None, object) if self.kind == NAME else (-1, np.int64)
      return np.array([keys[label] if label >= 0 else none for label in best.tolist()], kind)
    rows = np.split(chosen.indices, chosen.indptr[1:-1])
    return [[keys[label] for label in row.tolist()] for row in rows[: chosen.shape[0]]]

  def extended(self, texts: Sequence[str]) -> "LabelSpace":
    """Returns a space with more labels; an added id is the next number."""
    more: list = list(texts)
    keys = self.keys
    if keys is not None:
      first = max(keys) + 1 if self.kind in (IDS, ID) else 0
      keys = [*keys, *(range(first, first + len(more)) if self.kind in (IDS, ID) else more)]
    return LabelSpace(self.kind, [*self.texts, *more], keys, self._like)

  def first(self, num_labels: int) -> "LabelSpace":
    """Returns a space of the first labels alone."""
    keys = None if self.keys is None else self.keys[:num_labels]
    return LabelSpace(self.kind, self.texts[:num_labels], keys, self._like)

  def unknown(self, labels: Labels) -> list:
    """Returns names or ids that are none of this space, each once; [] if `encode` refuses the whole kind."""
    if label_values.is_matrix(labels.rows) or (flat := label_values.flattened(labels)).kind != self.kind:
      return []
    known = set(range(len(self.texts)) if self.keys is None else self.keys)
    return [key for key in dict.fromkeys(flat.items) if key not in known]

  def _numbers(self, flat: Flat, what: str, allow_unknown: bool) -> list[int]:
    """Returns the number of each name or id."""
    if self.keys is None:
      for row, label in flat.places():
        if not 0 <= label < len(self.texts):
          known = f"one of the {len(self.texts)} label_texts (0 to {len(self.texts) - 1})"
          raise DataError(f"{what}[{row}]: id {label} is not {known}")
      return flat.items
    number_of: dict = {}  # of labels with one name, the first
    for number, key in enumerate(self.keys):
      number_of.setdefault(key, number)
    if allow_unknown:
      repeated = len(self.keys) - len(number_of)
      return [number_of.setdefault(key, repeated + len(number_of)) for key in flat.items]
    for row, label in flat.places():
      if label not in number_of:
        raise DataError(f"{what}[{row}]: {shown(label)} is not one of the {len(self.texts)} label_texts")
    return [number_of[key] for key in flat.items]

  def _encoded_matrix(self, labels: Labels) -> sp.csr_matrix:
    if self.kind != MATRIX or not label_values.is_matrix(labels.rows):
      found = SHOWN[MATRIX] if label_values.is_matrix(labels.rows) else "lists or single labels"
      raise DataError(f"{labels.what}: expected {SHOWN[self.kind]}, found {found}")
    matrix, width = label_values.as_csr(labels), len(self.texts)
    if not self._like.shape[1] <= matrix.shape[1] <= width:  # some may have been added
      raise DataError(f"{labels.what}: expected {width} columns, found {matrix.shape[1]}")
    label_values.check_lengths(labels, matrix.shape[0])
    names = label_values.column_names(labels.rows)
    if names and self.keys and names != self.keys[: len(names)]:
      expected, found = next(pair for pair in zip(self.keys, names) if len(set(pair)) > 1)
      raise DataError(f"{labels.what}: expected column {shown(expected)}, found {shown(found)}")
    return sp.csr_matrix((matrix.data, matrix.indices, matrix.indptr), (matrix.shape[0], width))

  def _decoded_matrix(self, chosen: sp.csr_matrix) -> Any:
    found = sp.csr_matrix(
      (np.ones(chosen.nnz, self._like.dtype), chosen.indices, chosen.indptr), chosen.shape
    )
    found.sort_indices()
    return type(self._like)(found) if sp.issparse(self._like) else found.toarray()


def _empty(matrix: Any) -> Any:
  """Returns a matrix of the same type, without rows; CSR for any sparse one."""
  if not sp.issparse(matrix):
    return np.zeros((0, matrix.shape[1]), np.asarray(matrix).dtype)
  kind = sp.csr_array if isinstance(matrix, sp.sparray) else sp.csr_matrix
  return kind((0, matrix.shape[1]), dtype=matrix.dtype)
