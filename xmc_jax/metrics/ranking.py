"""Computes the ranking metrics P, nDCG, R, F1, PSP and PSnDCG at k.

Each is a ratio of two sums: what the hits earn over what the rows could earn.
`earnings` returns both hit by hit and row by row. The same numbers give the
mean (here), its parts by label (slices.py) and its interval (intervals.py).
docs/formulas.md, "Metrics".
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from xmc_jax.metrics.hits import Hits, Sparse, Truth, as_truth, find_hits
from xmc_jax.types import Array


class Earning(NamedTuple):
  """Holds the parts of one metric, whose value is Σ gains / Σ best."""

  gains: Array  # `[H]` what each hit earns
  best: Array  # `[N]` what each row adds to the denominator


def ratio(gained: Array | float, best: Array | float) -> np.ndarray:
  """Divides gained by best, elementwise; gives 0 where best is 0."""
  nothing = np.equal(best, 0)
  return np.where(nothing, 0.0, gained / np.where(nothing, 1.0, best))


def evaluate(
  ids: npt.ArrayLike,
  truth: Sparse,
  *,
  ks: Sequence[int] = (1, 3, 5),
  inverse_propensity: npt.ArrayLike | None = None,
) -> dict[str, float]:
  r"""Computes precision, nDCG, recall and F1 at each k, and the propensity-scored metrics.

  With h_ir = 1 if the prediction of rank r = 1, 2, … in row i is true, |y_i| the
  number of true labels, d_r = 1 / log2(r + 1) and q_ir = h_ir / p its inverse
  propensity:

  .. math::
    P@k &= \tfrac1N \sum_i \tfrac1k \sum_{r \le k} h_{ir} \\
    nDCG@k &= \tfrac1N \sum_i \frac{\sum_{r \le k} d_r h_{ir}}{D_{ik}}, \qquad
      D_{ik} = \sum_{r \le \min(k, |y_i|)} d_r \\
    R@k &= \text{mean over rows with labels of } \tfrac1{|y_i|} \sum_{r \le k} h_{ir} \\
    F1@k &= \tfrac1N \sum_i \tfrac{2}{k + |y_i|} \sum_{r \le k} h_{ir} \\
    PSP@k &= \sum_i \sum_{r \le k} q_{ir} \Big/ \sum_i \sum_{r \le k} q^*_{ir} \\
    PSnDCG@k &= \sum_i \tfrac{1}{D_{ik}} \sum_{r \le k} d_r q_{ir} \Big/
      \sum_i \tfrac{1}{D_{ik}} \sum_{r \le k} d_r q^*_{ir}

  where q* belongs to the best ranking: the true labels by falling inverse
  propensity. The last two are ratios of means, not means of ratios. Definitions
  follow the XMC repository's pyxclib, except that true labels are binarised.
  Rows without labels count as 0, and are skipped in R.

  Args:
    ids: `[N, K]` integer label ids, best first, padded with -1; a rank beyond K
      or with -1 is a miss.
    truth: sparse `[N, L]` true labels: any stored non-zero counts as 1.
    ks: the cut-offs k >= 1; one may exceed K and L.
    inverse_propensity: `[L]` from `metrics.inverse_propensity`, on training rows.

  Returns:
    `{'P@1': ..., 'nDCG@1': ..., 'R@1': ..., 'F1@1': ..., 'P@3': ...}`, fractions as floats,
    with `inverse_propensity` also 'PSP@k' and 'PSnDCG@k'.

  Raises:
    ValueError: for an id of L or more, a label named twice in a row of `ids`,
      shapes that do not match, or a k below 1.

  Example:
    >>> import scipy.sparse
    >>> truth = scipy.sparse.csr_array([[1, 0, 1]])
    >>> evaluate([[2, 1]], truth, ks=(2,))
    {'P@2': 0.5, 'nDCG@2': 0.6131..., 'R@2': 0.5, 'F1@2': 0.5}
  """
  truth = as_truth(truth)
  table = earnings(find_hits(ids, truth), truth, ks, inverse_propensity)
  return {name: float(ratio(part.gains.sum(), part.best.sum())) for name, part in table.items()}


def coverage(ids: npt.ArrayLike, truth: Sparse, *, ks: Sequence[int] = (1, 3, 5)) -> dict[str, float]:
  """Computes the share of the labels of `truth` that are found at least once within the top k.

  A label that no row has cannot be found and is left out. P@k can be high from
  frequent labels alone; coverage@k counts each label once.

  Args:
    ids: `[N, K]` integer label ids, best first, padded with -1.
    truth: sparse `[N, L]` true labels.
    ks: the cut-offs k >= 1.

  Returns:
    `{'coverage@1': ..., 'coverage@3': ...}`, fractions as floats.

  Example:
    >>> import scipy.sparse
    >>> coverage([[0], [0]], scipy.sparse.csr_array([[1, 1, 0], [1, 0, 0]]), ks=(1,))
    {'coverage@1': 0.5}
  """
  _check_cutoffs(ks)
  truth = as_truth(truth)
  hits = find_hits(ids, truth)
  present = np.unique(truth.labels).size
  return {f"coverage@{k}": float(ratio(np.unique(hits.labels[hits.ranks < k]).size, present)) for k in ks}


def lrap(ids: npt.ArrayLike, truth: Sparse) -> float:
  r"""Computes the label ranking average precision, as scikit-learn does where unranked labels tie at the end.

  .. math:: LRAP = \text{mean over rows with labels of } \tfrac1{|y_i|} \sum_{l \in y_i} t_{il} / r_{il}

  where r is the rank of a true label and t counts the true labels up to it; without a rank, r = L and
  t = |y_i|. Rows without labels are skipped; scikit-learn counts them as 1.

  Args:
    ids: `[N, K]` integer label ids, best first, padded with -1.
    truth: sparse `[N, L]` true labels: any stored non-zero counts as 1.

  Example:
    >>> import scipy.sparse
    >>> lrap([[2, 1]], scipy.sparse.csr_array([[1, 0, 1, 0]]))  # (1 / 1 + 2 / 4) / 2
    0.75
  """
  truth = as_truth(truth)
  hits = find_hits(ids, truth)
  order = np.lexsort((hits.ranks, hits.rows))
  rows = hits.rows[order]
  found = np.bincount(rows, minlength=truth.counts.size)
  before = np.arange(rows.size) - (np.cumsum(found) - found)[rows]
  ranked = np.bincount(rows, (1 + before) / (1 + hits.ranks[order]), minlength=found.size)
  gains = ranked + ratio((truth.counts - found) * truth.counts, truth.num_labels)
  return float(ratio(gains, truth.counts).sum() / max(np.count_nonzero(truth.counts), 1))


def earnings(
  hits: Hits, truth: Truth, ks: Sequence[int], inverse_propensity: npt.ArrayLike | None = None
) -> dict[str, Earning]:
  """Computes, for every metric of `evaluate`, what each hit and each row adds to it."""
  _check_cutoffs(ks)
  if inverse_propensity is not None:
    inverse_propensity = np.asarray(inverse_propensity, np.float64)
    if inverse_propensity.shape != (truth.num_labels,):
      raise ValueError(f"inverse_propensity must be [{truth.num_labels}], got {inverse_propensity.shape}")
    best_first = _best_ranking(truth, inverse_propensity)
  num_rows = truth.counts.size
  table: dict[str, Earning] = {}
  for k in ks:
    for name, family in FAMILIES.items():
      gains = family.weigh(hits, truth, k)
      if family.best:
        table[f"{name}@{k}"] = Earning(gains, family.best(truth, k))
      elif inverse_propensity is not None:
        of_best = family.weigh(best_first, truth, k) * inverse_propensity[best_first.labels]
        best = np.bincount(best_first.rows, of_best, minlength=num_rows)
        table[f"{name}@{k}"] = Earning(gains * inverse_propensity[hits.labels], best)
  return table


def by_row(
  ids: npt.ArrayLike, truth: Truth, ks: Sequence[int], inverse_propensity: npt.ArrayLike | None = None
) -> tuple[list[str], np.ndarray, np.ndarray]:
  """Returns the metrics' names, and for each row `[N, M]` what it earned and what it could have earned."""
  hits = find_hits(ids, truth)
  table = earnings(hits, truth, ks, inverse_propensity)
  gained = [np.bincount(hits.rows, part.gains, minlength=truth.counts.size) for part in table.values()]
  return list(table), np.stack(gained, axis=1), np.stack([part.best for part in table.values()], axis=1)


def _inside(ranked: Hits, truth: Truth, k: int) -> Array:
  return (ranked.ranks < k).astype(np.float64)


def _normalised_discount(ranked: Hits, truth: Truth, k: int) -> np.ndarray:
  """Returns `[H]` 1 / log2(rank + 1) within the top k, divided by the row's best possible sum of these."""
  ideal = np.cumsum(1 / np.log2(np.arange(2, k + 2)))[np.minimum(k, truth.counts[ranked.rows]) - 1]
  return (ranked.ranks < k) / np.log2(ranked.ranks + 2) / ideal


class Family(NamedTuple):
  """Defines metrics that differ by k alone."""

  meaning: str  # in words
  weigh: Callable[[Hits, Truth, int], Array]  # -> `[H]`, what each hit earns
  # -> `[N]`, what each row could earn. None weighs hits by their inverse propensity; a row could then earn
  # what its best ranking does.
  best: Callable[[Truth, int], Array] | None = None


FAMILIES = {
  "P": Family(
    "of the first k labels, how many are right",
    _inside,
    lambda truth, k: np.full(truth.counts.size, float(k)),
  ),
  "nDCG": Family(
    "the same, where a higher rank counts more",
    _normalised_discount,
    lambda truth, k: np.ones(truth.counts.size),
  ),
  "R": Family(
    "of the right labels, how many are among the first k",
    lambda hits, truth, k: _inside(hits, truth, k) / truth.counts[hits.rows],
    lambda truth, k: (truth.counts > 0).astype(np.float64),
  ),
  "F1": Family(
    "P and R joined: twice the right ones among the first k, of k and all right labels",
    lambda hits, truth, k: 2 * _inside(hits, truth, k) / (k + truth.counts[hits.rows]),
    lambda truth, k: np.ones(truth.counts.size),
  ),
  "PSP": Family("the same as P, where a rare label counts more", _inside),
  "PSnDCG": Family("the same as nDCG, where a rare label counts more", _normalised_discount),
}
"""Defines all metrics of `evaluate`, by the part of their name before the @."""


def _best_ranking(truth: Truth, inverse_propensity: np.ndarray) -> Hits:
  """Returns the hits of a perfect ranking: each row's true labels by falling inverse propensity."""
  order = np.lexsort((-inverse_propensity[truth.labels], truth.rows))
  starts = np.repeat(np.cumsum(truth.counts) - truth.counts, truth.counts)
  return Hits(truth.rows, truth.labels[order], np.arange(truth.rows.size) - starts)


def _check_cutoffs(ks: Sequence[int]) -> None:
  if any(k < 1 for k in ks):
    raise ValueError(f"every k of ks must be at least 1, got {tuple(ks)}")
