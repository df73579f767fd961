"""How many positives of a row a step draws, and how wide a batch's array of positives is.

An array is as wide as its own rows need it, in few widths: each is a program of its own. One width for all
batches would be that of the longest row of the whole data, which most batches do without: 741 labels on a set
with 3.4 a point.
"""

import math
from collections.abc import Sequence

import numpy as np

_MULTIPLE = 8
_USUAL, _MOST = 0.5, 0.9  # the share of batches that the first width, and the second, suffice for


def num_drawn(settings) -> int:
  """Returns how many positives a step draws of a row; 0 is all of them.

  Under SoftTop-k they are `num_positives`, and at least k: eq. 6 of DEXML asks for k labels at once.

  Args:
    settings: `config.method`.
  """
  if settings.loss != "soft_top_k" or not settings.num_positives:
    return settings.num_positives
  return max(settings.num_positives, math.ceil(settings.k))


def choose_widths(counts: np.ndarray, in_pool: np.ndarray, batch_size: int) -> tuple[int, ...]:
  """Returns at most three widths, ascending; the last has room for the longest row.

  Args:
    counts: `[N]` true labels of each row; at least as many as of them can be in a pool.
    in_pool: `[N]` about how many of these are in a batch's pool; not whole.
    batch_size: B, rows in a batch, drawn at random.
  """
  if not len(counts):
    return (1,)
  longest = max(1, int(counts.max()))
  usual = _longest_of_batch(in_pool, batch_size, _USUAL)
  most = _longest_of_batch(counts, batch_size, _MOST)
  return tuple(sorted({min(_rounded_up(width), longest) for width in (usual, most, longest)}))


def doublings(width: int, longest: int) -> tuple[int, ...]:
  """Returns `width`, twice that, and so on, up to one that has room for the longest row."""
  widths = [min(width, max(1, longest))]
  while widths[-1] < longest:
    widths.append(2 * widths[-1])
  return tuple(widths)


def suffices(widths: Sequence[int], needed: int) -> int:
  """Returns the least of the ascending widths that has room for so many.

  Raises:
    ValueError: the last is too small.
  """
  if needed > widths[-1]:
    raise ValueError(f"{needed} positives of a row do not fit into the widths {tuple(widths)}")
  return next(width for width in widths if width >= needed)


def expected_in_pool(counts: np.ndarray, drawn: np.ndarray, others: np.ndarray) -> np.ndarray:
  """Estimates how many labels of each row are in a batch's pool: the mean and two standard deviations.

  Args:
    counts: `[N]` true labels of each row.
    drawn: `[N]` how many of them the row itself draws.
    others: `[N]` how many of them other rows bring, on average.

  Returns:
    `[N]`, at most `counts`; not whole.
  """
  return np.minimum(counts, drawn + others + 2 * np.sqrt(others))


def _longest_of_batch(counts: np.ndarray, batch_size: int, share: float) -> int:
  """The longest row of a batch, in so large a share of batches: F(w)^B >= share for F of single rows."""
  return int(np.ceil(np.quantile(counts, share ** (1 / batch_size), method="higher")))


def _rounded_up(width: int) -> int:
  return -(-max(width, 1) // _MULTIPLE) * _MULTIPLE
