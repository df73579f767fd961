"""Finds which predictions are right: joins ranked ids with the true labels."""

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse

from xmc_jax.types import Array

Sparse: TypeAlias = scipy.sparse.sparray | scipy.sparse.spmatrix


class Truth(NamedTuple):
  """Holds the true labels as (row, label) pairs, ordered by row, then by label; no pair twice."""

  rows: Array  # `[nnz]` int64, like `labels`
  labels: Array
  counts: Array  # `[N]` int64 true labels of each row
  num_labels: int  # L


class Hits(NamedTuple):
  """Holds the predictions that are true, in no particular order: `[H]` int64, ranks from 0."""

  rows: Array
  labels: Array
  ranks: Array


def as_truth(truth: Sparse) -> Truth:
  """Reads a sparse `[N, L]` matrix without changing it: each stored non-zero, even 0.5, is a true label."""
  matrix = scipy.sparse.csr_array(truth, copy=True)
  matrix.sum_duplicates()
  matrix.eliminate_zeros()
  counts = np.diff(matrix.indptr).astype(np.int64)
  rows = np.repeat(np.arange(matrix.shape[0]), counts)
  return Truth(rows, matrix.indices.astype(np.int64), counts, matrix.shape[1])


def num_rows_without_labels(truth: Sparse) -> int:
  """Returns the number of rows of the sparse `[N, L]` truth that have no label at all.

  Such rows count as 0 in P, nDCG and the propensity-scored metrics, and are
  skipped in R: a report should give their number if there are any.

  Example:
    >>> import scipy.sparse
    >>> num_rows_without_labels(scipy.sparse.csr_array([[0, 1], [0, 0]]))
    1
  """
  return int(np.sum(as_truth(truth).counts == 0))


def find_hits(ids: npt.ArrayLike, truth: Truth) -> Hits:
  """Finds the true labels among ranked predictions, ids `[N, K]` padded with -1.

  Each row's predictions are sorted once by label, with their rank in the lowest
  digits, so that every true label finds its rank by bisection: the time grows
  with N·K log K + nnz log(N·K), and no array of size L is made.

  Raises:
    ValueError: if the shapes do not match, an id is not below L, or a row names
      the same label twice: such a ranking could earn a label twice.
  """
  ids = _checked(ids, truth)
  if ids.size == 0:
    none = np.zeros(0, np.int64)
    return Hits(none, none, none)
  num_rows, depth = ids.shape
  width = truth.num_labels + 1  # padding becomes one more label, which is never true
  first = np.arange(num_rows, dtype=np.int64)[:, None] * width
  ranked = ((first + np.where(ids < 0, truth.num_labels, ids)) * depth + np.arange(depth)).astype(np.int64)
  ranked.sort(axis=1)
  ranked = ranked.ravel()
  wanted = (truth.rows * width + truth.labels) * depth
  place = np.minimum(np.searchsorted(ranked, wanted), ranked.size - 1)
  ranks = ranked[place] - wanted
  hit = (ranks >= 0) & (ranks < depth)
  return Hits(truth.rows[hit], truth.labels[hit], ranks[hit])


def _checked(ids: npt.ArrayLike, truth: Truth) -> np.ndarray:
  """Returns `ids` as a numpy array; raises ValueError if it cannot be a ranking of these labels."""
  ids = np.asarray(ids)
  if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
    raise ValueError(f"ids must be [N, K] integers, got shape {ids.shape} of {ids.dtype}")
  if ids.shape[0] != truth.counts.size:
    raise ValueError(f"ids has {ids.shape[0]} rows, truth has {truth.counts.size}")
  if ids.size and ids.max() >= truth.num_labels:
    raise ValueError(f"ids names label {ids.max()}, truth has {truth.num_labels} labels")
  in_order = np.sort(ids, axis=1)
  twice = (in_order[:, 1:] == in_order[:, :-1]) & (in_order[:, 1:] >= 0)
  if twice.any():
    row, column = np.argwhere(twice)[0]
    raise ValueError(f"ids names label {in_order[row, column]} twice in row {row}; each may stand there once")
  return ids
