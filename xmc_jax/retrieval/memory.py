"""Scores labels by nearby training queries: by their votes, and by local kernel ridge regression."""

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from xmc_jax.retrieval.lexical import cosines_at


class Neighbors(NamedTuple):
  """Holds the training queries near each query."""

  ids: np.ndarray  # `[n, m]` int32, padded with -1
  weights: np.ndarray  # `[n, m]` float32, 0 for padding

  def normalized(self) -> "Neighbors":
    """Scales the weights of each query to sum to 1; a query without neighbours keeps zeros."""
    total = self.weights.sum(axis=1, keepdims=True)
    return Neighbors(self.ids, self.weights / np.where(total > 0, total, 1))

  def matrix(self, num_points: int) -> sp.csr_matrix:
    """Returns the weights as CSR `[n, num_points]`."""
    real = (self.ids >= 0) & (self.weights != 0)
    indptr = np.concatenate([[0], np.cumsum(real.sum(axis=1))])
    return sp.csr_matrix((self.weights[real], self.ids[real], indptr), (len(self.ids), num_points))

  def votes(self, truth: sp.csr_matrix) -> sp.csr_matrix:
    """Adds up the neighbours' votes for labels, CSR `[N, L]`, times their weights: CSR `[n, L]`, sorted."""
    votes = self.matrix(truth.shape[0]) @ truth
    votes.sort_indices()
    return votes


def log_frequency(truth: sp.csr_matrix) -> np.ndarray:
  """Returns `[L]` float32, ln(1 + number of rows of a CSR `[N, L]` with the label)."""
  return np.log1p(np.bincount(truth.indices, minlength=truth.shape[1])).astype(np.float32)


def merged(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """Joins ids `[n, a]` and `[n, b]` to `[n, a + b]`, each id once, rising; repeated ids become -1."""
  ids = np.sort(np.concatenate([first, second], axis=1), axis=1)
  again = np.zeros(ids.shape, bool)
  again[:, 1:] = ids[:, 1:] == ids[:, :-1]
  return np.where(again, -1, ids)


def kernel(cosines: np.ndarray, word_cosines: np.ndarray) -> np.ndarray:
  """Returns the kernel: the cosine by words, plus the squared cosine by embeddings if that is above 0."""
  return word_cosines + np.square(np.maximum(cosines, 0))


def ridge_weights(
  near: np.ndarray,
  vectors: np.ndarray,
  words: sp.csr_matrix,
  point_vectors: np.ndarray,
  point_words: sp.csr_matrix,
  *,
  num_points: int = 64,
  penalty: float = 1.0,
) -> Neighbors:
  """Weighs the nearest training queries by kernel ridge regression on only these.

  With K the kernel among a query's m nearest training queries, and k the kernel of these with the query, the
  weights are (K + penalty I)⁻¹ k. The labels' scores are then those of a one-vs-all ridge regression on
  these m (local learning, Bottou and Vapnik, 1992). Near duplicates share one vote here, while votes by
  similarity count each of them.

  Args:
    near: `[n, c]` ids of candidate neighbours, padded with -1.
    vectors: `[n, D]` unit embeddings of the queries.
    words: CSR `[n, V]` unit tf-idf vectors of the queries.
    point_vectors, point_words: `[N, D]` and CSR `[N, V]`, the same for all training queries.
    num_points: m.
    penalty: ridge penalty.
  """
  safe = np.maximum(near, 0)
  cosines = np.matmul(point_vectors[safe], vectors[:, :, None])[..., 0]
  values = np.where(near >= 0, kernel(cosines, cosines_at(words, point_words, safe)), -np.inf)
  best = np.argsort(-values, axis=1, kind="stable")[:, :num_points]
  ids, values = (np.take_along_axis(array, best, axis=1) for array in (safe, values))
  real = np.isfinite(values)
  nearest = point_vectors[ids]
  gram = kernel(np.matmul(nearest, nearest.transpose(0, 2, 1)), _products(point_words, ids))
  gram *= real[:, :, None] & real[:, None, :]
  places = np.arange(ids.shape[1])
  gram[:, places, places] += penalty
  weights = np.linalg.solve(gram, np.where(real, values, 0)[..., None])[..., 0]
  return Neighbors(np.where(real, ids, -1).astype(np.int32), np.where(real, weights, 0).astype(np.float32))


def _products(table: sp.csr_matrix, ids: np.ndarray) -> np.ndarray:
  """Returns `[n, m, m]` inner products among the rows `ids[i]` of a CSR table, for each i."""
  num_rows, width = ids.shape
  picked = table[ids.ravel()]
  # Each i gets its own columns, so that a single block-diagonal product computes all.
  owner = np.repeat(np.repeat(np.arange(num_rows), width), np.diff(picked.indptr)).astype(np.int64)
  used, columns = np.unique(owner * table.shape[1] + picked.indices, return_inverse=True)
  separate = sp.csr_matrix((picked.data, columns, picked.indptr), (num_rows * width, len(used)))
  blocks = (separate @ separate.T).tocoo()
  out = np.zeros((num_rows, width, width), np.float32)
  out[blocks.row // width, blocks.row % width, blocks.col % width] = blocks.data
  return out
