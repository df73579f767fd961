"""Chooses how many positives a step samples per row, and the width of a batch's array of positives.

Each batch uses the smallest of a few widths that fits its rows; each width is compiled separately. A single
width for all batches would have to fit the longest row of the data, which most batches do not contain:
741 labels on a data set with 3.4 labels per point.
"""

import math

import ml_collections
import numpy as np

from xmc_jax.distributed.sharding import rounded_up

_MULTIPLE = 8
_USUAL, _MOST = 0.5, 0.9  # the fraction of batches that fit the first width, and the second


def num_sampled(settings: ml_collections.ConfigDict) -> int:
  """Returns how many positives a step samples per row; 0 is all of them.

  Under SoftTop-k it is `num_positives`, but at least k: DEXML's released code samples min(k, |P|), eq. 6
  takes all (docs/formulas.md, "From rows to a batch").
  """
  if settings.loss != "soft_top_k" or not settings.num_positives:
    return settings.num_positives
  return max(settings.num_positives, math.ceil(settings.k))


def choose_widths(counts: np.ndarray, in_pool: np.ndarray, batch_size: int) -> tuple[int, ...]:
  """Returns at most three widths, ascending; the last has room for the longest row.

  Args:
    counts: `[N]` number of true labels of each row.
    in_pool: `[N]` estimated number of these that are in a batch's pool; not necessarily whole.
    batch_size: B, rows in a batch, sampled at random.
  """
  if not len(counts):
    return (1,)
  longest = max(1, int(counts.max()))
  usual = _longest_of_batch(in_pool, batch_size, _USUAL)
  most = _longest_of_batch(counts, batch_size, _MOST)
  widths = (min(rounded_up(max(width, 1), _MULTIPLE), longest) for width in (usual, most, longest))
  return tuple(sorted(set(widths)))


def doublings(width: int, longest: int) -> tuple[int, ...]:
  """Returns `width`, twice that, and so on, up to one that has room for the longest row."""
  widths = [min(width, max(1, longest))]
  while widths[-1] < longest:
    widths.append(2 * widths[-1])
  return tuple(widths)


def _longest_of_batch(counts: np.ndarray, batch_size: int, share: float) -> int:
  """Returns a width w that fits a fraction `share` of batches: F(w)^B >= share for the cdf F of a row."""
  return int(np.ceil(np.quantile(counts, share ** (1 / batch_size), method="higher")))
