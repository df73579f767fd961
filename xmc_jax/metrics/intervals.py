"""Estimates by the bootstrap how far a metric, or a difference of two rankings, would move on other rows."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from xmc_jax.metrics.hits import Sparse, as_truth
from xmc_jax.metrics.ranking import by_row, ratio

_BLOCK_DRAWS = 1 << 22  # rows drawn at once: 32 MiB of indices
_MOST_DRAWS = 1 << 28  # rows drawn in all, if the caller does not give the number of resamples
_FEWEST, _MOST = 1000, 10_000
_TAIL = (1 - 0.95) / 2  # an interval holds 95 %


def bootstrap_intervals(
  ids: npt.ArrayLike,
  truth: Sparse,
  *,
  ks: Sequence[int] = (1, 3, 5),
  inverse_propensity: npt.ArrayLike | None = None,
  num_resamples: int = 1000,
  seed: int = 0,
) -> dict[str, tuple[float, float]]:
  """Computes 95 % percentile bootstrap intervals of every metric of `evaluate`, over test rows.

  Rows are drawn with replacement, N at a time. Each metric is a ratio of two
  sums, and both sums are taken over the drawn rows. All metrics use the same
  draws.

  Args:
    ids: `[N, K]` integer label ids, best first, padded with -1.
    truth: sparse `[N, L]` true labels.
    ks: the cut-offs k >= 1.
    inverse_propensity: `[L]`, adds the propensity-scored metrics.
    num_resamples: draws; each costs O(N).
    seed: the draws' seed; equal seeds give equal intervals.

  Returns:
    `{'P@1': (low, high), ...}`, fractions as floats.

  Example:
    >>> import numpy as np, scipy.sparse
    >>> truth = scipy.sparse.csr_array(np.eye(4))
    >>> bootstrap_intervals([[0], [1], [2], [0]], truth, ks=(1,))['P@1']
    (0.25, 1.0)
  """
  names, gained, best = by_row(ids, as_truth(truth), ks, inverse_propensity)
  values = resampled(gained, best, num_resamples, seed)
  bounds = np.quantile(values, (_TAIL, 1 - _TAIL), axis=0)
  return {name: (float(low), float(high)) for name, low, high in zip(names, *bounds)}


class Difference(NamedTuple):
  """Holds how far one ranking's metric lies above that of the first.

  Attributes:
    value: the difference.
    low, high: its 95 % interval.
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
    _differences(names, values[other] - values[0], drawn[:, other] - drawn[:, 0])
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


def _differences(names: list[str], values: np.ndarray, drawn: np.ndarray) -> dict[str, Difference]:
  """Returns the `Difference` of each metric, from `[M]` values and `[R, M]` draws of them."""
  low, high = np.quantile(drawn, (_TAIL, 1 - _TAIL), axis=0)
  slack = 1e-12  # allows for sums of the same numbers in another order
  as_far = np.sum(np.abs(drawn - values) >= np.abs(values) - slack, axis=0)
  p_values = (1 + as_far) / (1 + len(drawn))
  return {
    name: Difference(*map(float, numbers))
    for name, *numbers in zip(names, values, low, high, p_values, strict=True)
  }


def resampled(gained: np.ndarray, best: np.ndarray, num_resamples: int, seed: int) -> np.ndarray:
  """Returns `[R, ..., M]` ratios of sums over rows drawn with replacement; all columns use the same draws.

  A row adds `gained` `[N, ..., M]` to the numerators, and `best` `[N, M]` to the denominators.
  """
  num_rows, flat = len(best), gained.reshape(len(gained), int(np.prod(gained.shape[1:])))
  values = np.empty((num_resamples, *gained.shape[1:]))
  done = 0
  for counts in _draws(num_rows, num_resamples, np.random.default_rng(seed)):
    earned, possible = (counts @ flat).reshape(len(counts), *gained.shape[1:]), counts @ best
    possible = possible.reshape(len(counts), *[1] * (gained.ndim - 2), best.shape[1])
    values[done : done + len(counts)] = ratio(earned, possible)
    done += len(counts)
  return values


def _draws(num_rows: int, num_resamples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
  """Yields blocks `[R, N]` float64: how often each resample drew each row."""
  block = max(1, _BLOCK_DRAWS // max(num_rows, 1))
  for start in range(0, num_resamples, block):
    size = min(block, num_resamples - start)
    drawn = rng.integers(num_rows, size=(size, num_rows)) + np.arange(size)[:, None] * num_rows
    yield np.bincount(drawn.ravel(), minlength=size * num_rows).reshape(size, num_rows).astype(np.float64)
