"""Estimates how far a metric would move on other test rows: bootstrap intervals."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from xmc_jax.metrics.hits import Sparse, as_truth
from xmc_jax.metrics.ranking import by_row, ratio

_BLOCK_DRAWS = 1 << 22  # rows drawn at once: 32 MiB of indices


def bootstrap_intervals(
  ids: npt.ArrayLike,
  truth: Sparse,
  *,
  ks: Sequence[int] = (1, 3, 5),
  inverse_propensity: npt.ArrayLike | None = None,
  level: float = 0.95,
  num_resamples: int = 1000,
  seed: int = 0,
) -> dict[str, tuple[float, float]]:
  """Computes percentile bootstrap intervals of every metric of `evaluate`, over test rows.

  Rows are drawn with replacement, N at a time. Each metric is a ratio of two
  sums, and both sums are taken over the drawn rows. All metrics use the same
  draws.

  Args:
    ids: `[N, K]` integer label ids, best first, padded with -1.
    truth: sparse `[N, L]` true labels.
    ks: the cut-offs k >= 1.
    inverse_propensity: `[L]`, adds the propensity-scored metrics.
    level: the intervals' coverage.
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
  tail = (1 - level) / 2
  bounds = np.quantile(values, (tail, 1 - tail), axis=0)
  return {name: (float(low), float(high)) for name, low, high in zip(names, *bounds)}


def resampled(gained: np.ndarray, best: np.ndarray, num_resamples: int, seed: int) -> np.ndarray:
  """Returns `[R, ...]` ratios of sums over rows drawn with replacement; all columns use the same draws.

  Args:
    gained: `[N, ..., M]` what each row adds to the numerators.
    best: `[N, M]` what each row adds to the denominators.
    num_resamples: R.
    seed: the draws' seed.
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
    drawn = rng.integers(num_rows, size=(size, num_rows)) if num_rows else np.zeros((size, 0), np.int64)
    drawn += np.arange(size)[:, None] * num_rows
    yield np.bincount(drawn.ravel(), minlength=size * num_rows).reshape(size, num_rows).astype(np.float64)
