"""Chooses how many of a text's best labels to give, and measures sets of labels."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse

from xmc_jax.metrics.hits import Sparse, as_truth, find_hits
from xmc_jax.metrics.ranking import ratio
from xmc_jax.types import Array

_BLOCK = 256  # texts computed at once
_LEAST = 0.001  # of the probabilities that count


def best_f1_sizes(probabilities: npt.ArrayLike) -> np.ndarray:
  """Returns the sizes of the label sets with the largest expected F1.

  F1 of a set = 2 · hits / (size + true labels). If labels are right independently of each other, the best set
  of a size has the most probable labels (Lewis, 1995), and the expectation for size s is
  Σ_i Σ_j P(i of the first s are right) · P(j of the others are right) · 2 i / (s + i + j).

  Args:
    probabilities: `[n, k]` of the k best labels of n texts, the largest first; labels beyond them, and those
      below 0.001, count as wrong.

  Returns:
    `[n]` int64, 1 to k.

  Example:
    >>> best_f1_sizes([[0.9, 0.8, 0.1], [0.4, 0.1, 0.0]])
    array([2, 1])
  """
  values = np.clip(np.asarray(probabilities, np.float64), 0, 1)
  counts = np.maximum((values >= _LEAST).sum(axis=1), 1)
  order, sizes = np.argsort(counts, kind="stable"), np.ones(len(values), np.int64)
  for start in range(0, len(values), _BLOCK):
    rows = order[start : start + _BLOCK]
    sizes[rows] += _expected_f1(values[rows, : counts[rows[-1]]]).argmax(axis=1)
  return sizes


class SetScores(NamedTuple):
  """Holds how good sets of labels are; F1 = 2 · right / (given + true), and 0 where nothing is given or true.

  Attributes:
    num_given, num_true, num_right: `[L]` int64, the rows that were given each label, that have it, and both.
    sample_f1: the mean over rows of the F1 of each row.
    micro_f1: the F1 of all pairs of rows and labels together.
    macro_f1: the mean of the F1 of each label that was given or is true somewhere.
    mean_size: labels given, a row.
  """

  num_given: Array
  num_true: Array
  num_right: Array
  sample_f1: float
  micro_f1: float
  macro_f1: float
  mean_size: float


def score_sets(ids: npt.ArrayLike, truth: Sparse) -> SetScores:
  """Compares sets of labels with the truth, as scikit-learn's `f1_score` does for labels that occur.

  Args:
    ids: `[N, k]` integer label ids in any order, padded with -1.
    truth: sparse `[N, L]` true labels: any stored non-zero counts as 1.

  Example:
    >>> import scipy.sparse
    >>> found = score_sets([[0, 1], [0, -1]], scipy.sparse.csr_array([[1, 0, 0], [1, 0, 1]]))
    >>> round(found.sample_f1, 3), found.num_given.tolist()
    (0.667, [2, 1, 0])
  """
  ids, pairs = np.asarray(ids), as_truth(truth)
  hits, real = find_hits(ids, pairs), ids >= 0
  given = real.sum(axis=1)
  right = np.bincount(hits.rows, minlength=len(ids))
  of_labels = (
    np.bincount(some, minlength=pairs.num_labels) for some in (ids[real], pairs.labels, hits.labels)
  )
  num_given, num_true, num_right = of_labels
  seen = num_given + num_true > 0
  f1 = ratio(2 * right, given + pairs.counts), ratio(2 * num_right, num_given + num_true)[seen]
  means = [float(part.mean()) if len(part) else 0.0 for part in (*f1, given)]
  micro = float(ratio(2 * len(hits.rows), given.sum() + pairs.counts.sum()))
  return SetScores(num_given, num_true, num_right, means[0], micro, means[1], means[2])


def confusions(ids: npt.ArrayLike, truth: Sparse, most: int = 1000) -> np.ndarray:
  """Counts which labels are given in place of which.

  Args:
    ids: `[N, k]` integer label ids in any order, padded with -1.
    truth: sparse `[N, L]` true labels: any stored non-zero counts as 1.
    most: returns at most so many pairs.

  Returns:
    `[n, 3]` integers, the most frequent pair first: a true label that rows miss, a wrong one that they are
    given, and the number of rows that do both.

  Example:
    >>> import scipy.sparse
    >>> confusions([[0, 1], [1, -1]], scipy.sparse.csr_array([[1, 0, 1], [0, 0, 1]])).tolist()
    [[2, 1, 2]]
  """
  ids, pairs = np.asarray(ids), as_truth(truth)
  hits, rows = find_hits(ids, pairs), np.nonzero(ids >= 0)[0]
  given, true, right = (
    scipy.sparse.csr_array((np.ones(len(at), np.int32), (at, labels)), (len(ids), pairs.num_labels))
    for at, labels in ((rows, ids[ids >= 0]), pairs[:2], hits[:2])
  )
  both = ((true - right).T @ (given - right)).tocsr().tocoo()  # in order, for ties
  first = np.argsort(-both.data, kind="stable")[:most]
  return np.stack([both.row[first], both.col[first], both.data[first]], axis=1)


def _expected_f1(values: np.ndarray) -> np.ndarray:
  """Returns the expected F1 of the sets of the 1, …, k first of `[n, k]` labels: `[n, k]`."""
  num_texts, k = values.shape
  others = _num_right(values[:, ::-1])  # of the last labels
  first = _num_right(values)
  right = np.arange(k + 1)
  expected = np.empty((num_texts, k))
  for size in range(1, k + 1):
    hits, missed = right[: size + 1, None], right[None, : k - size + 1]
    f1 = 2 * hits / (size + hits + missed)
    chances = first[size][:, : size + 1] @ f1
    expected[:, size - 1] = (chances * others[k - size][:, : k - size + 1]).sum(axis=1)
  return expected


def _num_right(values: np.ndarray) -> np.ndarray:
  """Returns P(i of the first s labels are right), at `[s, n, i]` `[k + 1, n, k + 1]`, of `[n, k]`."""
  num_texts, k = values.shape
  chances = np.zeros((k + 1, num_texts, k + 1))
  chances[0, :, 0] = 1
  for size in range(k):
    p = values[:, size, None]
    chances[size + 1] = chances[size] * (1 - p)
    chances[size + 1, :, 1:] += chances[size, :, :-1] * p
  return chances
