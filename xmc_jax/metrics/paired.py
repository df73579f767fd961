"""Tests whether one ranking is better than another of the same rows: the paired bootstrap."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from xmc_jax.metrics.hits import Sparse, as_truth
from xmc_jax.metrics.intervals import resampled
from xmc_jax.metrics.ranking import by_row, ratio

_MOST_DRAWS = 1 << 28  # rows drawn in all, if the caller does not give the number of resamples
_FEWEST, _MOST = 1000, 10_000


class Difference(NamedTuple):
  """Holds how far one ranking's metric lies above that of the first.

  Attributes:
    value: the difference.
    low, high: its interval.
    p_value: how often the choice of rows alone would give a difference as large; in (0, 1].
  """

  value: float
  low: float
  high: float
  p_value: float


def paired_differences(
  rankings: Sequence,
  truth: Sparse,
  *,
  ks: Sequence[int] = (1, 3, 5),
  inverse_propensity: npt.ArrayLike | None = None,
  level: float = 0.95,
  num_resamples: int = 0,
  seed: int = 0,
) -> list[dict[str, Difference]]:
  r"""Computes differences of every metric of `evaluate` to the first ranking, with intervals and p-values.

  Rows are drawn with replacement as for `bootstrap_intervals`, the same for all rankings, so that what makes
  a row hard for both cancels out. Let d be the difference on all N rows and d* that on a draw. The interval
  holds the middle of the d*, and the two-sided p-value counts the draws whose d* is at least as far from d as
  d is from 0:

  .. math::
    p = \frac{1 + \#\{|d^* - d| \ge |d|\}}{1 + R}

  Args:
    rankings: `[N, K]` integer label ids each, best first, padded with -1; K may differ between them.
    truth: sparse `[N, L]` true labels.
    ks: the cut-offs k >= 1.
    inverse_propensity: `[L]`, adds the propensity-scored metrics.
    level: the coverage of each interval alone, not of all of them together.
    num_resamples: R; 0 means 10,000, or fewer, down to 1,000, where there are many rows.
    seed: the draws' seed.

  Returns:
    For each ranking after the first `{'P@1': Difference, ...}`, fractions.

  Example:
    >>> import numpy as np, scipy.sparse
    >>> truth = scipy.sparse.csr_array(np.eye(4))
    >>> found = paired_differences([[[0], [1], [1], [0]], [[0], [1], [2], [3]]], truth, ks=(1,))
    >>> found[0]['P@1'].value
    0.5

  References:
    Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 16. Koehn, Statistical Significance
    Tests for Machine Translation Evaluation, EMNLP 2004.
  """
  truth = as_truth(truth)
  num_rows = truth.counts.size
  num_resamples = num_resamples or int(np.clip(_MOST_DRAWS // max(num_rows, 1), _FEWEST, _MOST))
  by_ranking = []
  for ids in rankings:
    names, gained, best = by_row(ids, truth, ks, inverse_propensity)
    by_ranking.append(gained.T)
  gained = np.moveaxis(np.array(by_ranking), -1, 0)  # [N, rankings, M]
  values = ratio(gained.sum(axis=0), best.sum(axis=0))
  drawn = resampled(gained, best, num_resamples, seed)
  return [
    _differences(names, values[other] - values[0], drawn[:, other] - drawn[:, 0], level)
    for other in range(1, len(rankings))
  ]


def holm(p_values: Sequence[float]) -> np.ndarray:
  """Makes the p-values of n tests larger, so that all tests together err as rarely as one test alone.

  The i-th smallest is multiplied by n + 1 - i, and is at least the result for the one before (Holm 1979).

  Args:
    p_values: `[n]`.

  Returns:
    `[n]` float64, at most 1, in the order given.

  Example:
    >>> holm([0.01, 0.04, 0.03])
    array([0.03, 0.06, 0.06])
  """
  values = np.asarray(p_values, np.float64)
  order = np.argsort(values, kind="stable")
  adjusted = np.empty_like(values)
  steps = values[order] * np.arange(values.size, 0, -1)
  adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
  return adjusted


def _differences(
  names: list[str], values: np.ndarray, drawn: np.ndarray, level: float
) -> dict[str, Difference]:
  """Returns the `Difference` of each metric, from `[M]` values and `[R, M]` draws of them."""
  tail = (1 - level) / 2
  low, high = np.quantile(drawn, (tail, 1 - tail), axis=0)
  slack = 1e-12  # allows for sums of the same numbers in another order
  as_far = np.sum(np.abs(drawn - values) >= np.abs(values) - slack, axis=0)
  p_values = (1 + as_far) / (1 + len(drawn))
  return {
    name: Difference(*map(float, numbers))
    for name, *numbers in zip(names, values, low, high, p_values, strict=True)
  }
