"""Stores rows of different lengths one after the other: a batch's true labels, and samples of them.

Some points have thousands of labels, others two. So no array here is padded to the longest row.
"""

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp


class Ragged(NamedTuple):
  """Holds the entries of n rows.

  Attributes:
    values: `[E]`, row by row.
    counts: `[n]` int64, the number of entries of each row.
  """

  values: np.ndarray
  counts: np.ndarray

  @property
  def owners(self) -> np.ndarray:
    """Returns `[E]`, the row of each entry."""
    return np.repeat(np.arange(len(self.counts)), self.counts)

  def padded(self, width: int) -> np.ndarray:
    """Returns the rows as `[n, width]`, padded with -1 if the values are integers, otherwise with 0."""
    fill = -1 if np.issubdtype(self.values.dtype, np.integer) else 0
    out = np.full((len(self.counts), width), fill, self.values.dtype)
    places = np.arange(len(self.values)) - np.repeat(_starts(self.counts), self.counts)
    out[self.owners, places] = self.values
    return out

  def only(self, kept: np.ndarray, values: np.ndarray) -> "Ragged":
    """Returns the rows with `values` `[E]` in place of their own, and of these only the entries in `kept`."""
    counts = np.bincount(self.owners[kept], minlength=len(self.counts))
    return Ragged(values[kept], counts)


def places_of(matrix: sp.csr_matrix, rows: np.ndarray) -> Ragged:
  """Returns the positions of some rows' entries among all entries of a CSR matrix; row -1 is empty."""
  safe = np.maximum(rows, 0)
  starts = matrix.indptr[safe].astype(np.int64)
  counts = np.where(rows >= 0, matrix.indptr[safe + 1] - starts, 0)
  return Ragged(np.repeat(starts - _starts(counts), counts) + np.arange(counts.sum()), counts)


def of_matrix(matrix: sp.csr_matrix, rows: np.ndarray) -> Ragged:
  """Returns the column ids of some rows of a CSR matrix; row -1 is empty."""
  places = places_of(matrix, rows)
  return places._replace(values=matrix.indices[places.values])


def of_padded(array: np.ndarray) -> Ragged:
  """Returns the entries of `[n, K]` that are not -1."""
  real = array >= 0
  return Ragged(array[real], real.sum(axis=1))


def sample(
  counts: np.ndarray, number: int, generator: np.random.Generator, sampling_weights: np.ndarray | None = None
) -> np.ndarray:
  """Marks entries of rows, sampled without replacement, uniformly or by weight (PRIME, appendix J).

  Args:
    counts: `[n]` number of entries of each row.
    number: entries to sample per row; a row with fewer entries gives all that it has. 0 samples all.
    generator: the random numbers.
    sampling_weights: `[counts.sum()]` positive sampling weights: the next entry is sampled from those left in
      its row, with a probability proportional to its weight. None is uniform.

  Returns:
    `[counts.sum()]` bool, True for the sampled entries.
  """
  marked = np.zeros(int(counts.sum()), bool)
  if not number or number >= counts.max(initial=0):
    return ~marked
  if sampling_weights is None:
    marked[_uniformly(counts, number, generator)] = True
  else:
    marked[_by_weight(counts, number, generator, sampling_weights)] = True
  return marked


def sample_one(
  counts: np.ndarray, generator: np.random.Generator, sampling_weights: np.ndarray
) -> np.ndarray:
  """Marks one entry of each non-empty row, like `sample` of 1 by weight, from one random number per row."""
  marked, uniforms = np.zeros(len(sampling_weights), bool), generator.random(len(counts))
  begins, some = _starts(counts), counts > 0
  sums = np.concatenate([[0.0], np.cumsum(sampling_weights, dtype=np.float64)])
  low, high = sums[begins[some]], sums[(begins + counts)[some]]
  places = np.searchsorted(sums, low + uniforms[some] * (high - low), side="right") - 1
  marked[np.clip(places, begins[some], (begins + counts)[some] - 1)] = True  # rounding must not leave the row
  return marked


def _uniformly(counts: np.ndarray, number: int, generator: np.random.Generator) -> np.ndarray:
  """Returns the places of uniformly sampled entries, by Floyd's algorithm for all rows at once."""
  places = np.full((len(counts), number), -1, np.int64)
  uniforms = generator.random((number, len(counts)))
  for turn in range(number):
    last = np.maximum(counts - number, 0) + turn  # the last place that this turn may sample
    place = (uniforms[turn] * (last + 1)).astype(np.int64)
    place = np.where((places[:, :turn] == place[:, None]).any(axis=1), last, place)
    places[:, turn] = np.where(turn < counts, place, -1)
  return (_starts(counts)[:, None] + places)[places >= 0]


def _by_weight(
  counts: np.ndarray, number: int, generator: np.random.Generator, sampling_weights: np.ndarray
) -> np.ndarray:
  """Returns the places of each row's shortest exponential waiting times (Efraimidis and Spirakis, 2006)."""
  waiting = generator.standard_exponential(len(sampling_weights)) / sampling_weights
  order = np.lexsort((waiting, np.repeat(np.arange(len(counts)), counts)))  # within each row, by waiting time
  turn = np.arange(len(sampling_weights)) - np.repeat(_starts(counts), counts)
  return order[turn < number]


def _starts(counts: np.ndarray) -> np.ndarray:
  return np.cumsum(counts) - counts


def common(rows: Ragged, num_values: int) -> np.ndarray:
  """Returns `[n, n]` bool, which rows of ids have one in common; a non-empty row has one with itself."""
  ends = np.concatenate([[0], np.cumsum(rows.counts)])
  matrix = sp.csr_matrix((np.ones(len(rows.values), bool), rows.values, ends), (len(rows.counts), num_values))
  return (matrix @ matrix.T).toarray()


def with_values(matrix: sp.csr_matrix, values: np.ndarray | None = None) -> sp.csr_matrix:
  """Returns a CSR matrix with `values` `[nnz]` in place of its own; None is 1 everywhere."""
  values = np.ones(matrix.nnz) if values is None else values
  return sp.csr_matrix((values, matrix.indices, matrix.indptr), matrix.shape)
