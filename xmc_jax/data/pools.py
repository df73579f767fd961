"""Which labels stand in a batch's pool, and how their texts are laid out.

Columns stand in the order in which the devices hold them: the texts of every group are split over the
devices, and a pool's columns are those of the first device, then those of the second
(`buckets.device_major`).
"""

from typing import NamedTuple

import numpy as np

from xmc_jax.contract import BatchSpec, Tokens
from xmc_jax.data import buckets

_MARGIN = 4.5  # standard deviations kept free


class Pool(NamedTuple):
  """The labels of one step.

  Attributes:
    columns: `[S]` int32 label ids, -1 for padding; empty where they are `static_columns` in every step.
    labels: their texts as token groups; empty likewise.
    column_of: `[L]` int32 column of each label, -1 where it is not in the pool; or the label itself, where
      the method will add columns.
  """

  columns: np.ndarray
  labels: tuple[Tokens, ...]
  column_of: np.ndarray


class StaticPool:
  """Every label is a column, the same one in every step.

  Attributes:
    columns: `[S]` int32 label ids, -1 for padding.
    groups: their texts, `[n, T]` each; empty where texts are not needed.
  """

  def __init__(self, columns: np.ndarray, groups: tuple[Tokens, ...], num_labels: int):
    self.columns, self.groups = columns, groups
    self._column_of = _positions(columns, num_labels)

  def draw(self, drawn: np.ndarray, listed: np.ndarray | None, generator) -> Pool:
    return Pool(np.zeros(0, np.int32), (), self._column_of)


class DrawnPool:
  """The drawn positives of a batch, hard negatives from its rows' shortlists, and labels drawn uniformly.

  Args:
    labels: token table of the labels.
    truth: CSR `[N, L]` that positives are drawn from.
    spec: how many of each.
    batch_size: B.
    max_length: the widest token row.
    num_shards: devices that the labels' texts are split over.
    held: which of a group's rows this process reads; None is all.
  """

  columns, groups = np.zeros(0, np.int32), ()

  def __init__(self, labels, truth, spec: BatchSpec, batch_size: int, max_length: int, num_shards: int, held):
    self._labels, self._num_random, self._shards = labels, spec.num_random_negatives, (num_shards, held)
    self._chooses = spec.num_fresh_negatives > 0
    self._own_ids = np.arange(len(labels.lengths), dtype=np.int32)
    counts = np.diff(truth.indptr)
    per_row = np.sort(np.minimum(counts, spec.num_positives) if spec.num_positives else counts)
    num_drawn = int(per_row[-batch_size:].sum())  # at most
    num_labels = len(labels.lengths)
    frequency = np.bincount(truth.indices, minlength=num_labels) / max(truth.nnz, 1)

    def plan(num_uniform: int) -> buckets.Slots:
      size = min(num_drawn + num_uniform, num_labels)
      # A label has one slot, however often it is drawn, so its share is its chance to be drawn at all.
      odds = -np.expm1(-num_drawn * frequency) + num_uniform / num_labels
      return buckets.plan(
        labels.lengths, -(-size // num_shards) * num_shards, max_length, weights=odds, multiple=num_shards
      )

    self._slots = plan(spec.num_random_negatives)
    # A shortlist's labels are no random ones; that is only a guess at their lengths.
    self._slots_with_hard = plan(spec.num_random_negatives + batch_size * spec.num_hard_negatives)

  def draw(self, drawn: np.ndarray, listed: np.ndarray | None, generator) -> Pool:
    """The pool of one step.

    Args:
      drawn: positives, any number and order.
      listed: hard negatives likewise; None before there are shortlists.
      generator: for what is drawn uniformly.
    """
    slots = self._slots if listed is None else self._slots_with_hard
    pool = np.unique(drawn if listed is None else np.concatenate([drawn, listed]))
    num_labels = len(self._labels.lengths)
    extra = min(self._num_random, buckets.num_rows(slots) - len(pool))
    if extra > 0:
      others = np.setdiff1d(np.arange(num_labels, dtype=np.int32), pool, assume_unique=True)
      pool = np.concatenate([pool, generator.choice(others, min(extra, len(others)), replace=False)])
    columns, groups = buckets.lay_out(self._labels, pool.astype(np.int32), slots, *self._shards)
    return Pool(columns, groups, self._own_ids if self._chooses else _positions(columns, num_labels))


class TablePool:
  """The drawn positives of a batch, as labels without texts.

  There are as many columns as a usual batch needs; a batch that needs more gets twice as many, or four times.

  Args:
    truth: CSR `[N, L]` that positives are drawn from.
    spec: how many.
    batch_size: B.
  """

  columns, groups = np.zeros(0, np.int32), ()

  def __init__(self, truth, spec: BatchSpec, batch_size: int):
    self._num_labels = truth.shape[1]
    counts = np.diff(truth.indptr)
    per_row = np.minimum(counts, spec.num_positives) if spec.num_positives else counts
    per_row = per_row[per_row > 0]
    drawn = batch_size * per_row.mean() if len(per_row) else 1.0
    frequency = np.bincount(truth.indices, minlength=self._num_labels) / max(truth.nnz, 1)
    distinct = -np.expm1(-drawn * frequency).sum()
    spread = per_row.std() * np.sqrt(batch_size) if len(per_row) else 0.0
    self._size = _rounded(distinct + _MARGIN * spread)

  def draw(self, drawn: np.ndarray, listed: np.ndarray | None, generator) -> Pool:
    pool = np.unique(drawn)
    size = self._size
    while size < len(pool):
      size *= 2
    columns = np.full(size, -1, np.int32)
    columns[: len(pool)] = pool
    return Pool(columns, (), _positions(columns, self._num_labels))


def _rounded(size: float) -> int:
  """Rounded up to a multiple of 128, which every mesh and every vector unit divides."""
  return max(1, int(np.ceil(size / 128))) * 128


def make_pool(
  labels, truth, spec: BatchSpec, *, batch_size: int, max_length: int, num_shards: int, held=None
):
  """The pool that `spec.labels` names."""
  if spec.labels == "all":
    return all_labels(labels, max_length, num_shards, held)
  if spec.labels == "in_batch_table":
    return TablePool(truth, spec, batch_size)
  if spec.labels == "table":
    num_labels = len(labels.lengths)
    columns = np.full(-(-num_labels // num_shards) * num_shards, -1, np.int32)
    columns[:num_labels] = np.arange(num_labels)
    return StaticPool(columns, (), num_labels)
  return DrawnPool(labels, truth, spec, batch_size, max_length, num_shards, held)


def all_labels(labels, max_length: int, num_shards: int, held: buckets.Held | None) -> StaticPool:
  """Every label once, in groups of one width each, which divide by the devices."""
  columns, groups = [], []
  for width, members in buckets.split_tightly(labels.lengths, max_length):
    padded = np.full(-(-len(members) // num_shards) * num_shards, -1, np.int32)
    padded[: len(members)] = members
    groups.append(labels.gather(padded if held is None else np.where(held(len(padded)), padded, -1), width))
    columns.append(padded)
  return StaticPool(buckets.device_major(columns, num_shards), tuple(groups), len(labels.lengths))


def label_table(labels, max_length: int, num_shards: int, held: buckets.Held | None) -> Tokens:
  """Every label in its order, in rows of one width that divide by the devices."""
  rows = np.full(-(-len(labels.lengths) // num_shards) * num_shards, -1, np.int32)
  rows[: len(labels.lengths)] = np.arange(len(labels.lengths))
  width = min(max_length, int(labels.lengths.max(initial=1)))
  return labels.gather(rows if held is None else np.where(held(len(rows)), rows, -1), width)


def _positions(columns: np.ndarray, num_labels: int) -> np.ndarray:
  """`[L]` where each label stands among the columns, -1 where it does not."""
  column_of = np.full(num_labels, -1, np.int32)
  column_of[columns[columns >= 0]] = np.flatnonzero(columns >= 0)
  return column_of
