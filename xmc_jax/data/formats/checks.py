"""What is asked of every list of targets or edges, whatever file it comes from."""

from collections import Counter

import numpy as np

from xmc_jax.data.formats.source import Pairs


def cleaned(pairs: Pairs, num_columns: int, tally: Counter) -> Pairs:
  """Rows with sorted, distinct columns and positive values.

  Args:
    pairs: rows as read.
    num_columns: ids must lie in [0, num_columns).
    tally: counts what was merged ('duplicates', the larger value stays) and what was
      left out ('zeros', a relevance of 0 is no label).

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


def _refuse_first(pairs: Pairs, rows: np.ndarray, wrong: np.ndarray, expected: str, found) -> None:
  if wrong.any():
    at = int(np.argmax(wrong))
    raise pairs.place.refuse(int(rows[at]), expected, str(found[at]))
