"""Compares probabilities with the truth: of pairs predicted with 0.7, seven in ten should be right."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_NUM_BINS = 15  # as in Guo et al.
_BLOCK = 1 << 22  # pairs processed at once


class Bin(NamedTuple):
  """Holds the statistics of pairs with probabilities above `low`, up to `high`; 0 is in the first bin."""

  low: float
  high: float
  pairs: int
  share: float  # of all pairs
  predicted: float  # their mean probability
  right: float  # the share of them that is right


class Reliability(NamedTuple):
  """Holds the result of `reliability`.

  Attributes:
    ece: expected calibration error; 0 where there is no pair.
    bins: the bins that have pairs, the lowest probabilities first.
    by_chance: about the error that exact probabilities have for so few pairs.
  """

  ece: float
  bins: list[Bin]
  by_chance: float


def reliability(
  probabilities: npt.ArrayLike, right: npt.ArrayLike, *, num_bins: int = _NUM_BINS
) -> Reliability:
  """Compares probabilities with how often they came true, in bins of equal width.

  The expected calibration error is Σ_b share_b · |right_b - predicted_b| (Guo et al., 2017, eq. 3). Each bin
  is weighted by its number of pairs: where nearly all probabilities are about 0, the error is about 0 too,
  even if the few large probabilities are wrong. In that case, read the bins.

  Args:
    probabilities: `[n]` of n pairs, from 0 to 1.
    right: `[n]` bool.
    num_bins: M; bin m has the probabilities in ((m - 1) / M, m / M].

  Returns:
    The error and the bins.

  Raises:
    ValueError: a number is not from 0 to 1.

  Example:
    >>> found = reliability([0.9, 0.8, 0.1], [True, False, False], num_bins=2)
    >>> [(bin.pairs, round(bin.predicted, 2), bin.right) for bin in found.bins]
    [(1, 0.1, 0.0), (2, 0.85, 0.5)]
    >>> round(found.ece, 4)  # 1/3 · 0.1 + 2/3 · 0.35
    0.2667
  """
  probabilities, right = np.asarray(probabilities), np.asarray(right, bool)
  edges = np.linspace(0, 1, num_bins + 1)
  pairs = np.zeros(num_bins, np.int64)
  sums, num_right = np.zeros(num_bins), np.zeros(num_bins)
  for start in range(0, len(right), _BLOCK):
    values = probabilities[start : start + _BLOCK].astype(np.float64)
    if not (values.min() >= 0 and values.max() <= 1):
      raise ValueError(f"probabilities from {values.min()} to {values.max()}; expected 0 to 1")
    places = np.searchsorted(edges[1:-1], values, side="left")
    pairs += np.bincount(places, minlength=num_bins)
    sums += np.bincount(places, values, num_bins)
    num_right += np.bincount(places, right[start : start + _BLOCK], num_bins)
  filled = np.flatnonzero(pairs)
  pairs = pairs[filled]
  share = pairs / max(len(right), 1)
  predicted = sums[filled] / pairs
  share_right = num_right[filled] / pairs
  columns = edges[filled], edges[filled + 1], pairs, share, predicted, share_right
  bins = [Bin(*row) for row in zip(*(column.tolist() for column in columns))]
  # The mean absolute value of a normal variable is √(2/π) of its deviation.
  by_chance = share @ np.sqrt(2 / np.pi * predicted * (1 - predicted) / pairs)
  return Reliability(float(share @ abs(share_right - predicted)), bins, float(by_chance))
