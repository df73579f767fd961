"""Checks of lists of targets or edges, the same for every file format."""

from collections import Counter

import numpy as np

from xmc_jax.data.formats.source import Pairs


def cleaned(pairs: Pairs, num_columns: int, tally: Counter) -> Pairs:
  """Returns the rows with sorted, distinct columns and positive values.

  Args:
    pairs: rows as read.
    num_columns: ids must be in [0, num_columns).
    tally: its 'duplicates' counts merged entries (the larger value is kept), and its
      'zeros' entries left out (a relevance of 0 is not a label).

  Raises:
    DataError: an id out of range, a value that is NaN, infinite or negative.
  """
  rows = np.repeat(np.arange(len(pairs.counts)), pairs.counts)
  outside = (pairs.ids < 0) | (pairs.ids >= num_columns)
  _refuse_first(pairs, rows, outside, f"an id in [0, {num_columns})", pairs.ids)
  wrong = ~(np.isfinite(pairs.values) & (pairs.values >= 0))
  _refuse_first(pairs, rows, wrong, "a relevance that is finite and not negative", pairs.values)

  keys, ids, values = rows * num_columns + pairs.ids, pairs.ids, pairs.values
  if np.any(keys[1:] <= keys[:-1]):
    order = np.argsort(keys, kind="stable")
    first = np.flatnonzero(np.diff(keys[order], prepend=-1))
    tally["duplicates"] += len(keys) - len(first)
    values = np.maximum.reduceat(values[order], first)
    rows, ids = rows[order][first], ids[order][first]
  positive = values > 0
  if not positive.all():
    tally["zeros"] += int((~positive).sum())
    rows, ids, values = rows[positive], ids[positive], values[positive]
  return Pairs(np.bincount(rows, minlength=len(pairs.counts)), ids, values, pairs.place)


def _refuse_first(
  pairs: Pairs, rows: np.ndarray, wrong: np.ndarray, expected: str, found: np.ndarray
) -> None:
  if wrong.any():
    at = int(np.argmax(wrong))
    raise pairs.place.refuse(int(rows[at]), expected, str(found[at]))
