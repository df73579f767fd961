"""Lays out texts in groups of a few fixed widths, so that short texts are not padded like long ones.

A step function is compiled for fixed shapes. A batch is therefore laid out in slots, `(width, rows)` groups
such as ((16, 130), (24, 300), (32, 82)), planned once from the data's length distribution. A text may be put
into a wider slot than it needs, but not into a narrower one.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np

from xmc_jax.data.tokens import TokenTable
from xmc_jax.distributed.sharding import rounded_up
from xmc_jax.types import Tokens

WIDTH_STEP = 8
_MOST_SLOTS = 3  # more need less padding and compile longer
_FINE_STEP, _MOST_GROUPS = 4, 8
_TRIALS = 400
MARGIN = 4.5  # standard deviations of spare room, so that practically every batch fits

Slots = tuple[tuple[int, int], ...]
LocalRows = Callable[[int], np.ndarray]


def every_row(num_rows: int) -> np.ndarray:
  """Returns the LocalRows of a process that reads all rows."""
  return np.ones(num_rows, bool)


class Layout(NamedTuple):
  """Says how groups of texts are laid out.

  Attributes:
    max_length: the widest token row.
    num_shards: devices that the rows of a group are split over, and divide by.
    local_rows: `n -> [n]` bool: the rows of a group of n that this process reads; the others have no tokens.
  """

  max_length: int
  num_shards: int = 1
  local_rows: LocalRows = every_row

  def group(self, table: TokenTable, ids: np.ndarray, width: int) -> Tokens:
    """Returns the texts of `ids` `[n]`, -1 for padding, as a group of this width."""
    return table.gather(np.where(self.local_rows(len(ids)), ids, -1), width)

  def padded(self, ids: np.ndarray) -> np.ndarray:
    """Returns int32 ids, then -1 until they divide by the devices."""
    return padded(ids, rounded_up(len(ids), self.num_shards))


def padded(ids: np.ndarray, size: int) -> np.ndarray:
  """Returns `[size]` int32: the ids, then -1."""
  return np.pad(ids, (0, size - len(ids)), constant_values=-1).astype(np.int32)


def widths(max_length: int) -> list[int]:
  """Returns the widths in use: multiples of 8 below `max_length`, and `max_length` itself."""
  return [*range(WIDTH_STEP, max_length, WIDTH_STEP), max_length]


def few_widths(max_length: int) -> list[int]:
  """Returns so few widths that all can be compiled beforehand: 8, 16, 24, 32, 64, 128, ..., `max_length`."""
  every = (WIDTH_STEP, 2 * WIDTH_STEP, 3 * WIDTH_STEP, *(4 * WIDTH_STEP << power for power in range(30)))
  return [*(width for width in every if width < max_length), max_length]


def plan(
  lengths: np.ndarray,
  num_rows: int,
  max_length: int,
  *,
  weights: np.ndarray | None = None,
  multiple: int = 1,
  group_size: int = 1,
) -> Slots:
  """Plans slots for batches of `num_rows` texts that are sampled at random.

  Args:
    lengths: `[n]` token counts of the texts that batches are sampled from.
    num_rows: rows in a batch.
    max_length: the widest slot; every text fits there, truncated if necessary.
    weights: `[n]` sampling weights of the texts, up to a factor; None is uniform.
    multiple: every group's rows divide by this (the mesh's data axis).
    group_size: texts are sampled in groups of this size, and the texts of a group may have the same length.

  Returns:
    `((width, rows), ...)`, widths ascending; the rows sum to `num_rows`.
  """
  every = widths(max_length)
  weights = np.ones(len(lengths)) if weights is None else weights
  tails = [np.average(lengths > width, weights=weights) if weights.any() else 0.0 for width in every[:-1]]
  longer = {0: num_rows, max_length: 0}  # width -> how many rows may need more
  for width, tail in zip(every[:-1], tails):
    need = num_rows * tail + MARGIN * math.sqrt(group_size * num_rows * tail * (1 - tail))
    longer[width] = min(num_rows, math.ceil(need / multiple) * multiple)
  best: tuple[float, Slots] = (math.inf, ())
  for count in range(1, _MOST_SLOTS + 1):
    for chosen in itertools.combinations(every[:-1], count - 1):
      edges = [0, *chosen, max_length]
      slots = tuple((high, longer[low] - longer[high]) for low, high in itertools.pairwise(edges))
      slots = tuple(slot for slot in slots if slot[1])
      cost = sum(width * rows for width, rows in slots)
      if cost < best[0]:
        best = (cost, slots)
  return best[1]


def most_real_tokens(
  slots: Slots,
  lengths: np.ndarray,
  *,
  weights: np.ndarray | None = None,
  group_size: int = 1,
) -> tuple[int, ...]:
  """Estimates the most real tokens that each slot holds, in practically every random batch.

  Simulates `_TRIALS` batches and adds `MARGIN` standard deviations to the mean.

  Args:
    slots: from `plan`.
    lengths: `[n]` token counts of the texts that batches are sampled from.
    weights: `[n]` probability, at most 1, that a batch has each text, independently of the others; None is
      full batches of uniformly sampled texts.
    group_size: as for `plan`.
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
  # `assign` puts a batch's longest texts into the last slot, whatever their length.
  found, top = [], 0
  for width, rows in reversed(slots):
    held = np.clip(np.minimum(ends, top + rows) - np.maximum(ends - counts, top), 0, None)
    tokens = held @ long_first
    most = tokens.mean() + MARGIN * math.sqrt(group_size) * tokens.std()
    found.append(max(1, min(width * rows, math.ceil(most))))
    top += rows
  return tuple(reversed(found))


def group_size_in_cluster(num_rows: int) -> int:
  """Returns the `group_size` of `plan` for texts of one cluster: they are similar, and so are their lengths.

  On LF-DebianTitles, the number of texts longer than a given width varies about 30 times as much among
  clusters of 279 points as among 279 points sampled at random.
  """
  return 1 + num_rows // 20


def assign(slots: Slots, lengths: np.ndarray) -> np.ndarray | None:
  """Assigns texts to slots, the longest texts to the widest slot.

  Args:
    slots: from `plan`.
    lengths: `[n]` token counts; n is at most the slots' rows, and the other rows are padding.

  Returns:
    `[rows]` indices into `lengths`, -1 for padding; or None if the texts do not
    fit, which happens to about one in 100,000 random batches.
  """
  order = np.argsort(lengths, kind="stable")
  limits = np.repeat([width for width, _ in slots], [rows for _, rows in slots])
  fits = np.minimum(lengths[order], limits[-1]) <= limits[len(limits) - len(order) :]
  return np.pad(order, (len(limits) - len(order), 0), constant_values=-1) if fits.all() else None


def split_by_width(
  lengths: np.ndarray, max_length: int, in_use: Sequence[int] = ()
) -> list[tuple[int, np.ndarray]]:
  """Groups texts by the narrowest of the widths in use that holds them: `[(width, indices), ...]`."""
  every = np.asarray(in_use or widths(max_length))
  slot = np.searchsorted(every, np.minimum(lengths, max_length))
  groups = [(int(width), np.flatnonzero(slot == position)) for position, width in enumerate(every)]
  return [(width, rows) for width, rows in groups if len(rows)]


def split_tightly(lengths: np.ndarray, max_length: int) -> list[tuple[int, np.ndarray]]:
  """Groups texts like `split_by_width`, with widths chosen for these lengths; for texts laid out once.

  Widths are multiples of 4, or `max_length`. Each is compiled, so one more must save 1 % of the tokens.
  """
  if not len(lengths):
    return []
  every = np.asarray([*range(_FINE_STEP, max_length, _FINE_STEP), max_length])
  lengths = np.minimum(lengths, max_length)
  at_most = np.searchsorted(np.sort(lengths), every, side="right")  # how many texts each width holds
  # tokens[j]: the fewest tokens with `count` groups, the last of width j; cuts[j]: widths of the others.
  tokens, cuts = at_most * every, [()] * len(every)
  best: tuple[float, list[int]] = (math.inf, [])
  for count in range(1, _MOST_GROUPS + 1):
    cost = tokens[-1] * (1 + 0.01 * count)
    if cost < best[0]:
      best = (cost, [*cuts[-1], len(every) - 1])
    # The last group ends at width j, and the group before it at width i.
    longer = tokens + (at_most[:, None] - at_most) * every[:, None]
    longer = np.where(np.tri(len(every), k=-1, dtype=bool), longer, np.inf)
    before = longer.argmin(axis=1)
    tokens, cuts = longer.min(axis=1), [(*cuts[i], i) for i in before]
  return split_by_width(lengths, max_length, every[best[1]].tolist())


def num_rows(slots: Slots) -> int:
  """Returns how many texts the slots hold."""
  return sum(rows for _, rows in slots)


def lay_out(
  table: TokenTable,
  ids: np.ndarray,
  slots: Slots,
  layout: Layout,
  most: tuple[int, ...] | None = None,
) -> tuple[np.ndarray, tuple[Tokens, ...]]:
  """Lays out texts in slots; returns `[rows]` ids, -1 for padding, and one token group per width.

  The ids are in device order: first the rows of every group that are on the first device.
  `most` is the result of `most_real_tokens`; it becomes `Tokens.num_real_tokens` of the groups, unless one of
  them has more tokens.
  """
  order = assign(slots, table.lengths[ids])
  if order is None:  # one slot of the largest width holds every text
    slots, most = ((slots[-1][0], num_rows(slots)),), None
    order = cast(np.ndarray, assign(slots, table.lengths[ids]))
  laid_out = np.where(order >= 0, ids[order] if len(ids) else -1, -1).astype(np.int32)
  parts = np.split(laid_out, np.cumsum([rows for _, rows in slots])[:-1])
  groups = tuple(layout.group(table, part, width) for part, (width, _) in zip(parts, slots))
  if most and all(group.lengths.sum() <= tokens for group, tokens in zip(groups, most)):
    groups = tuple(replace(group, num_real_tokens=tokens) for group, tokens in zip(groups, most))
  return device_major(parts, layout.num_shards), groups


def device_major(parts: list[np.ndarray], num_shards: int) -> np.ndarray:
  """Joins the rows of several groups in device order; each group is split evenly over the devices."""
  return np.concatenate([part.reshape(num_shards, -1) for part in parts], axis=1).ravel()
