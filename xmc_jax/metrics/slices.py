"""Splits a metric's value by labels: its parts by training frequency."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from xmc_jax.metrics.hits import Sparse, as_truth, find_hits
from xmc_jax.metrics.ranking import earnings, ratio


def contributions(
  ids: npt.ArrayLike,
  truth: Sparse,
  groups: npt.ArrayLike,
  *,
  ks: Sequence[int] = (1, 3, 5),
  inverse_propensity: npt.ArrayLike | None = None,
) -> dict[str, np.ndarray]:
  """Splits every metric of `evaluate` into what each group of labels contributes.

  A hit contributes to the group of its label, so a metric's parts add up to the
  metric: the parts are shares of the total, not the metric among those labels.

  Args:
    ids: `[N, K]` integer label ids, best first, padded with -1.
    truth: sparse `[N, L]` true labels.
    groups: `[L]` group number of each label, 0 first: from `frequency_deciles`,
      `head_torso_tail`, or any other split.
    ks: the cut-offs k >= 1.
    inverse_propensity: `[L]`, adds the propensity-scored metrics.

  Returns:
    `{'P@1': [G] float64, ...}` with G = max(groups) + 1.

  Example:
    >>> import numpy as np, scipy.sparse
    >>> truth = scipy.sparse.csr_array([[1, 0, 1]])
    >>> contributions([[0, 2]], truth, np.array([0, 0, 1]), ks=(2,))['P@2']
    array([0.5, 0.5])

  References:
    Gupta et al., Dual-Encoders for Extreme Multi-Label Classification, ICLR 2024,
    section C.6 and Fig. 7.
  """
  truth, groups = as_truth(truth), np.asarray(groups)
  if groups.shape != (truth.num_labels,):
    raise ValueError(f"groups must be [{truth.num_labels}], got {groups.shape}")
  hits = find_hits(ids, truth)
  num_groups = int(groups.max(initial=-1)) + 1
  of_hit = groups[hits.labels]
  return {
    name: ratio(np.bincount(of_hit, part.gains, minlength=num_groups), part.best.sum())
    for name, part in earnings(hits, truth, ks, inverse_propensity).items()
  }


def frequency_deciles(train_counts: npt.ArrayLike) -> np.ndarray:
  """Splits the labels into ten groups of equal size by training frequency, the most frequent first.

  Labels of equal frequency keep the order of their ids. Sizes differ by at most one.

  Args:
    train_counts: `[L]` training points of each label.

  Returns:
    `[L]` int64 group of each label, 0 for the most frequent.

  Example:
    >>> frequency_deciles([5, 90, 5, 0, 1, 1, 1, 1, 1, 1])
    array([1, 0, 2, 9, 3, 4, 5, 6, 7, 8])
  """
  counts = np.asarray(train_counts, np.int64)
  groups = np.empty(counts.size, np.int64)
  groups[np.argsort(-counts, kind="stable")] = np.arange(counts.size) * 10 // max(counts.size, 1)
  return groups


FREQUENCIES = ("0", "1", "2–5", "6–20", "more")


def frequency_groups(train_counts: npt.ArrayLike) -> np.ndarray:
  """Groups labels by training points: none, one, 2 to 5, 6 to 20, or more; `FREQUENCIES` names the groups.

  Args:
    train_counts: `[L]` training points of each label.

  Returns:
    `[L]` int64 group of each label.

  Example:
    >>> frequency_groups([0, 1, 5, 6, 21])
    array([0, 1, 2, 3, 4])
  """
  return np.digitize(np.asarray(train_counts), (1, 2, 6, 21))


def head_torso_tail(train_counts: npt.ArrayLike) -> np.ndarray:
  """Splits the labels into 0 = head (> 100 training points), 1 = torso (10–100), 2 = tail (< 10).

  Args:
    train_counts: `[L]` training points of each label.

  Returns:
    `[L]` int64 group of each label.

  Example:
    >>> head_torso_tail([101, 100, 10, 9])
    array([0, 1, 1, 2])
  """
  return 2 - np.digitize(np.asarray(train_counts), (10, 101))
