"""Token lengths in a few static widths, so that short texts do not pay for long ones.

A step function is compiled for fixed shapes. A batch is therefore laid out in
slots, `(width, rows)` groups such as ((16, 130), (24, 300), (32, 82)), planned
once from the data's length distribution: any text may stand in a wider slot
than it needs, none in a narrower one.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np

from xmc_jax.types import Tokens

WIDTH_STEP = 8
_FINE_STEP, _MOST_GROUPS = 4, 8
_TRIALS = 400
MARGIN = 4.5  # standard deviations kept free, so that practically every batch fits

Slots = tuple[tuple[int, int], ...]
Held = Callable[[int], np.ndarray]  # n -> [n] bool: the rows of a group of n that this process holds


def widths(max_length: int) -> list[int]:
  """The widths in use: multiples of 8 below `max_length`, and `max_length` itself."""
  return [*range(WIDTH_STEP, max_length, WIDTH_STEP), max_length]


def plan(
  lengths: np.ndarray,
  num_rows: int,
  max_length: int,
  *,
  weights: np.ndarray | None = None,
  max_groups: int = 3,
  multiple: int = 1,
  clump: int = 1,
) -> Slots:
  """Slots for batches of `num_rows` texts drawn at random from `lengths`.

  Args:
    lengths: `[n]` token counts of the texts that batches are drawn from.
    num_rows: rows in a batch.
    max_length: the widest slot; every text fits there, truncated if need be.
    weights: `[n]` how likely each text is drawn, up to a factor; None is all alike.
    max_groups: more groups pad less and compile longer.
    multiple: every group's rows divide by this (the mesh's data axis).
    clump: texts are drawn so many at a time, and those may be of one length.

  Returns:
    `((width, rows), ...)`, widths rising, the rows adding up to `num_rows`.
  """
  every = widths(max_length)
  weights = np.ones(len(lengths)) if weights is None else weights
  tails = [np.average(lengths > width, weights=weights) if weights.any() else 0.0 for width in every[:-1]]
  longer = {0: num_rows, max_length: 0}  # how many rows may need more than this width
  for width, tail in zip(every[:-1], tails):
    need = num_rows * tail + MARGIN * math.sqrt(clump * num_rows * tail * (1 - tail))
    longer[width] = min(num_rows, math.ceil(need / multiple) * multiple)
  best = None
  for count in range(1, max_groups + 1):
    for chosen in itertools.combinations(every[:-1], count - 1):
      edges = [0, *chosen, max_length]
      slots = tuple((high, longer[low] - longer[high]) for low, high in itertools.pairwise(edges))
      slots = tuple(slot for slot in slots if slot[1])
      cost = sum(width * rows for width, rows in slots)
      if best is None or cost < best[0]:
        best = (cost, slots)
  return best[1]


def spaces(
  slots: Slots,
  lengths: np.ndarray,
  *,
  weights: np.ndarray | None = None,
  clump: int = 1,
) -> tuple[int, ...]:
  """How many real tokens each slot holds at most, in practically every batch drawn at random.

  Batches are drawn on paper, `_TRIALS` of them, and `MARGIN` standard deviations added to the mean.

  Args:
    slots: from `plan`.
    lengths: `[n]` token counts of the texts that batches are drawn from.
    weights: `[n]` the chance, at most 1, that a batch has each text, whatever else it has; None is batches
      full of texts that are all alike.
    clump: as for `plan`.
  """
  widest, total = slots[-1][0], num_rows(slots)
  histogram = np.bincount(np.minimum(lengths, widest), weights=weights, minlength=widest + 1)
  generator = np.random.default_rng(0)
  if weights is None:
    counts = generator.multinomial(total, histogram / max(1, histogram.sum()), size=_TRIALS)
  else:
    capped = np.minimum(lengths, widest)
    spread = np.sqrt(np.bincount(capped, weights=weights * (1 - weights), minlength=widest + 1))
    counts = np.maximum(0, generator.normal(histogram, spread, (_TRIALS, widest + 1)))
  counts, long_first = counts[:, ::-1], np.arange(widest, -1, -1)
  ends = np.cumsum(counts, axis=1)
  # A batch's longest texts stand in the last slot, whatever their length: see `assign`.
  found, top = [], 0
  for width, rows in reversed(slots):
    held = np.clip(np.minimum(ends, top + rows) - np.maximum(ends - counts, top), 0, None)
    tokens = held @ long_first
    most = tokens.mean() + MARGIN * math.sqrt(clump) * tokens.std()
    found.append(max(1, min(width * rows, math.ceil(most))))
    top += rows
  return tuple(reversed(found))


def leaf_clump(num_rows: int) -> int:
  """The `clump` of `plan` for texts of one leaf of a tree: they are alike, and so are their lengths.

  On LF-DebianTitles their number beyond a width varies some 30 times as much among leaves of 279 points as
  among as many points drawn at random.
  """
  return 1 + num_rows // 20


def assign(slots: Slots, lengths: np.ndarray) -> np.ndarray | None:
  """Which text stands in which slot.

  Args:
    slots: from `plan`.
    lengths: `[n]` token counts, n at most the slots' rows; the rest is padding.

  Returns:
    `[rows]` indices into `lengths`, -1 for padding; or None where the texts do
    not fit, which a batch drawn at random does about once in 100,000 times.
  """
  total = sum(rows for _, rows in slots)
  order = np.full(total, -1, np.int64)
  order[total - len(lengths) :] = np.argsort(lengths, kind="stable")
  sorted_lengths = np.where(order >= 0, lengths[order], 0) if len(lengths) else np.zeros(total, np.int64)
  limits = np.repeat([width for width, _ in slots], [rows for _, rows in slots])
  widest = slots[-1][0]
  return order if np.all(np.minimum(sorted_lengths, widest) <= limits) else None


def widest_only(slots: Slots) -> Slots:
  """The fallback for a batch that does not fit: every row as wide as the widest."""
  return ((slots[-1][0], sum(rows for _, rows in slots)),)


def split_by_width(lengths: np.ndarray, max_length: int) -> list[tuple[int, np.ndarray]]:
  """All texts grouped by the narrowest width that holds them: `[(width, indices), ...]`."""
  every = np.asarray(widths(max_length))
  slot = np.searchsorted(every, np.minimum(lengths, max_length))
  groups = [(int(width), np.flatnonzero(slot == position)) for position, width in enumerate(every)]
  return [(width, rows) for width, rows in groups if len(rows)]


def split_tightly(lengths: np.ndarray, max_length: int) -> list[tuple[int, np.ndarray]]:
  """`split_by_width` for texts that are laid out once: widths are chosen from these lengths.

  They are multiples of 4, and `max_length`. One more of them must save 1 % of the tokens: each is compiled.
  """
  if not len(lengths):
    return []
  every = np.asarray([*range(_FINE_STEP, max_length, _FINE_STEP), max_length])
  lengths = np.minimum(lengths, max_length)
  at_most = np.searchsorted(np.sort(lengths), every, side="right")  # texts that a width holds
  # tokens[j], cuts[j]: the least with so many groups, of which width j is the last; and where the others end.
  tokens, cuts = at_most * every, [()] * len(every)
  best = None
  for count in range(1, _MOST_GROUPS + 1):
    cost = tokens[-1] * (1 + 0.01 * count)
    if best is None or cost < best[0]:
      best = (cost, [*cuts[-1], len(every) - 1])
    # The group that ends at width j begins behind width i.
    longer = tokens + (at_most[:, None] - at_most) * every[:, None]
    longer = np.where(np.tri(len(every), k=-1, dtype=bool), longer, np.inf)
    before = longer.argmin(axis=1)
    tokens, cuts = longer.min(axis=1), [(*cuts[i], i) for i in before]
  ends = every[best[1]]
  slot = np.searchsorted(ends, lengths)
  groups = [(int(width), np.flatnonzero(slot == position)) for position, width in enumerate(ends)]
  return [(width, rows) for width, rows in groups if len(rows)]


def num_rows(slots: Slots) -> int:
  """How many texts the slots hold."""
  return sum(rows for _, rows in slots)


def lay_out(
  table,
  ids: np.ndarray,
  slots: Slots,
  num_shards: int,
  held: Held | None = None,
  most: tuple[int, ...] | None = None,
) -> tuple[np.ndarray, tuple[Tokens, ...]]:
  """Texts in slots: `[rows]` ids, -1 for padding, and a token group a width.

  The ids stand as the devices hold the rows: first those of every group that are on the first device.
  Where `held` is given, only the texts that it marks are read; the others' tokens are 0. `most` is what
  `spaces` says of the slots: groups say it too, unless one of them has more tokens.
  """
  order = assign(slots, table.lengths[ids])
  if order is None:
    slots, most = widest_only(slots), None
    order = assign(slots, table.lengths[ids])
  laid_out = np.where(order >= 0, ids[order] if len(ids) else -1, -1).astype(np.int32)
  parts = np.split(laid_out, np.cumsum([rows for _, rows in slots])[:-1])
  read = parts if held is None else [np.where(held(len(part)), part, -1) for part in parts]
  groups = tuple(table.gather(part, width) for part, (width, _) in zip(read, slots))
  if most and all(group.lengths.sum() <= tokens for group, tokens in zip(groups, most)):
    groups = tuple(group._replace(space=np.zeros(tokens, np.int8)) for group, tokens in zip(groups, most))
  return device_major(parts, num_shards), groups


def device_major(parts: list[np.ndarray], num_shards: int) -> np.ndarray:
  """The rows of several groups, each split evenly over the devices, in the order of the devices."""
  return np.concatenate([part.reshape(num_shards, -1) for part in parts], axis=1).ravel()
