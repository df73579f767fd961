"""Samples the labels of a batch's pool, and lays out their texts.

The columns of a pool are in device order. The texts of every group are split over the devices; the pool has
first the columns of the first device, then those of the second, and so on
(`length_buckets.device_major`). docs/formulas.md, "Pool", says what is in a pool.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from xmc_jax.batching import length_buckets, ragged
from xmc_jax.batching.length_buckets import Layout
from xmc_jax.data.tokens import TokenTable
from xmc_jax.distributed.sharding import rounded_up
from xmc_jax.types import BatchSpec, Tokens

Ids = np.ndarray  # of labels, int32


class Pool(NamedTuple):
  """Holds the labels of one step.

  Attributes:
    columns: `[S]` int32 label ids, -1 for padding; empty for a StaticPool, whose own `columns` apply.
    labels: their texts as token groups; empty in the same case.
    column_of: `[L]` int32 column of each label, -1 if it is not in the pool. If the method adds columns
      on the device, it is the label id itself.
    dropped: as in `Batch`.
  """

  columns: np.ndarray
  labels: tuple[Tokens, ...]
  column_of: np.ndarray
  dropped: np.ndarray | tuple[()] = ()


class StaticPool:
  """Holds every label as a column, the same one in every step.

  Attributes:
    columns: `[S]` int32 label ids, -1 for padding.
    groups: their texts, `[n, T]` each; empty if texts are not needed.
    probabilities: `[L]` approximate probability that `column_of` has an entry for each label.
  """

  def __init__(self, columns: np.ndarray, groups: tuple[Tokens, ...], num_labels: int):
    self.columns, self.groups, self.probabilities = columns, groups, np.ones(num_labels)
    self._column_of = _positions(columns, num_labels)

  def sample(self, sampled: Ids, others: Ids, listed: Ids | None, generator: np.random.Generator) -> Pool:
    return Pool(np.zeros(0, np.int32), (), self._column_of)


class SampledPool:
  """Samples pools: the sampled positives of a batch, hard negatives of its rows' shortlists, random labels.

  Positives are sampled from `truth`, CSR `[N, L]`; `label_weights` are those of `BatchBuilder`.
  """

  columns, groups = np.zeros(0, np.int32), ()

  def __init__(
    self,
    labels: TokenTable,
    truth: csr_matrix,
    spec: BatchSpec,
    batch_size: int,
    layout: Layout,
    label_weights: np.ndarray | None = None,
  ):
    self._labels, self._spec, self._layout = labels, spec, layout
    counts = np.diff(truth.indptr)
    per_row = np.sort(np.minimum(counts, spec.num_positives) if spec.num_positives else counts)
    num_sampled = int(per_row[-batch_size:].sum())  # at most
    num_labels = len(labels.lengths)
    most = min(num_labels, spec.pool_size or num_labels)
    frequency = label_frequency(truth, label_weights, spec.num_positives)
    by_frequency = most if spec.fill_pool else num_sampled

    # A label has one row, however often it is sampled, so its weight is the chance to be sampled at all.
    def probabilities_with(num_uniform: int) -> np.ndarray:
      return -np.expm1(-by_frequency * frequency) + num_uniform / num_labels

    def plan(num_uniform: int) -> tuple[length_buckets.Slots, tuple[int, ...] | None]:
      size = max(1, min(by_frequency + num_uniform, most))
      probabilities = probabilities_with(num_uniform)
      group_size = length_buckets.group_size_in_cluster(size) if spec.batch_is_cluster else 1
      rows = rounded_up(size, layout.num_shards)
      slots = length_buckets.plan(
        labels.lengths,
        rows,
        layout.max_length,
        weights=probabilities,
        multiple=layout.num_shards,
        group_size=group_size,
      )
      if layout.num_shards > 1:
        return slots, None
      if spec.fill_pool or num_uniform > spec.num_random_negatives:  # sampled labels fill the pool
        for _ in range(20):  # capped at 1, frequent labels leave the rest to others
          probabilities = np.minimum(1.0, probabilities * max(1.0, rows / max(probabilities.sum(), 1e-9)))
      return slots, length_buckets.most_real_tokens(
        slots, labels.lengths, weights=np.minimum(probabilities, 1), group_size=group_size
      )

    self._slots = plan(spec.num_random_negatives)
    # Hard negatives are not uniform; to treat them so is only a guess at their lengths.
    num_uniform = spec.num_random_negatives + batch_size * spec.num_hard_negatives
    self._slots_with_hard = plan(num_uniform)
    self.probabilities = np.minimum(1.0, probabilities_with(num_uniform))
    self._own_ids = None
    if spec.num_fresh_negatives:
      self.probabilities, self._own_ids = np.ones(num_labels), np.arange(num_labels, dtype=np.int32)

  def sample(self, sampled: Ids, others: Ids, listed: Ids | None, generator: np.random.Generator) -> Pool:
    """Builds the pool of one step.

    Args:
      sampled: the sampled positives, in any order, with repeats.
      others: positives of the same rows that were not sampled.
      listed: hard negatives, in any order, with repeats; None before there are shortlists.
      generator: the random numbers.
    """
    spec = self._spec
    slots, most = self._slots if listed is None else self._slots_with_hard
    num_labels = len(self._labels.lengths)
    room = min(spec.pool_size or num_labels, length_buckets.num_rows(slots))
    positives = np.unique(sampled)
    pool, dropped = _at_most(room, positives, generator), [0, max(0, len(positives) - room)]
    if listed is not None:
      hard = np.setdiff1d(listed, positives)
      dropped[0] = max(0, len(hard) - (room - len(pool)))
      pool = np.concatenate([pool, _at_most(room - len(pool), hard, generator)])
    if spec.fill_pool:
      pool = np.concatenate([pool, _at_most(room - len(pool), np.setdiff1d(others, positives), generator)])
    if extra := min(spec.num_random_negatives, room - len(pool)):
      # Of `extra + len(pool)` distinct random labels at least `extra` are outside the pool, and these are
      # uniform too. So no list of all labels is needed.
      candidates = generator.choice(num_labels, min(num_labels, extra + len(pool)), replace=False)
      outside = candidates[~np.isin(candidates, pool)]
      pool = np.concatenate([pool, outside[:extra].astype(np.int32)])
    columns, groups = length_buckets.lay_out(self._labels, pool.astype(np.int32), slots, self._layout, most)
    column_of = _positions(columns, num_labels) if self._own_ids is None else self._own_ids
    return Pool(columns, groups, column_of, np.array(dropped, np.int32) if spec.pool_size else ())


def _at_most(number: int, labels: Ids, generator: np.random.Generator) -> Ids:
  """Returns `number` of the labels, sampled uniformly; all of them if there are no more."""
  return labels if len(labels) <= number else generator.choice(labels, number, replace=False, shuffle=False)


class TablePool:
  """Samples pools: the sampled positives of a batch, as labels without texts.

  There are as many columns as a usual batch needs. For a batch that needs more, they double until it fits.
  """

  columns, groups = np.zeros(0, np.int32), ()

  def __init__(self, truth: csr_matrix, spec: BatchSpec, batch_size: int, label_weights: np.ndarray | None):
    self._num_labels = truth.shape[1]
    counts = np.diff(truth.indptr)
    per_row = np.minimum(counts, spec.num_positives) if spec.num_positives else counts
    per_row = per_row[per_row > 0]
    sampled = batch_size * per_row.mean() if len(per_row) else 1.0
    self.probabilities = -np.expm1(-sampled * label_frequency(truth, label_weights, spec.num_positives))
    spread = per_row.std() * np.sqrt(batch_size) if len(per_row) else 0.0
    usual = math.ceil(self.probabilities.sum() + length_buckets.MARGIN * spread)
    self._size = rounded_up(max(1, usual), 128)  # which mesh sizes and vector widths divide

  def sample(self, sampled: Ids, others: Ids, listed: Ids | None, generator: np.random.Generator) -> Pool:
    pool = np.unique(sampled)
    size = self._size
    while size < len(pool):
      size *= 2
    columns = length_buckets.padded(pool, size)
    return Pool(columns, (), _positions(columns, self._num_labels))


def label_frequency(
  truth: csr_matrix, label_weights: np.ndarray | None, num_positives: int = 0
) -> np.ndarray:
  """Estimates `[L]`, each label's share of the sampled positives: `num_positives` per row, or all if 0."""
  counts = np.diff(truth.indptr)
  taken = np.minimum(1.0, num_positives / np.maximum(counts, 1)) if num_positives else np.ones(len(counts))
  frequency = ragged.with_values(truth).T @ taken
  frequency = frequency if label_weights is None else frequency * label_weights
  return frequency / max(frequency.sum(), 1)


def make_pool(
  labels: TokenTable,
  truth: csr_matrix,
  spec: BatchSpec,
  batch_size: int,
  layout: Layout,
  label_weights: np.ndarray | None,
) -> StaticPool | SampledPool | TablePool:
  """Builds the pool that `spec.labels` names."""
  num_labels = len(labels.lengths)
  if spec.labels == "all":
    split = length_buckets.split_tightly(labels.lengths, layout.max_length)
    columns = [layout.padded(members) for _, members in split]
    groups = tuple(layout.group(labels, ids, width) for ids, (width, _) in zip(columns, split))
    return StaticPool(length_buckets.device_major(columns, layout.num_shards), groups, num_labels)
  if spec.labels == "in_batch_table":
    return TablePool(truth, spec, batch_size, label_weights)
  if spec.labels == "table":
    return StaticPool(layout.padded(np.arange(num_labels)), (), num_labels)
  return SampledPool(labels, truth, spec, batch_size, layout, label_weights)


def label_table(labels: TokenTable, layout: Layout) -> Tokens:
  """Lays out all labels in id order as one group."""
  width = min(layout.max_length, int(labels.lengths.max(initial=1)))
  return layout.group(labels, layout.padded(np.arange(len(labels.lengths))), width)


def _positions(columns: np.ndarray, num_labels: int) -> np.ndarray:
  """Returns `[L]`, the position of each label among the columns, -1 if it has none."""
  column_of = np.full(num_labels, -1, np.int32)
  column_of[columns[columns >= 0]] = np.flatnonzero(columns >= 0)
  return column_of


def in_columns(
  truth: ragged.Ragged, worth: np.ndarray, column_of: np.ndarray, widths: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the columns of each row's true labels `[B, P]`, and their weights.

  The weights of a row sum to 1. Labels outside the pool are left out.

  Args:
    truth: true labels of B rows.
    worth: `[E]` their weights, up to a factor: 0 for those that were not sampled.
    column_of: `[L]` column of each label, -1 if it is not in the pool.
    widths: the allowed values of P, ascending; the smallest that fits every row is used.
  """
  columns = column_of[truth.values]
  inside = columns >= 0
  found = truth.only(inside, columns)
  total = np.bincount(found.owners, worth[inside], minlength=len(found.counts))
  shares = worth[inside] / np.where(total > 0, total, 1)[found.owners]
  weights = found._replace(values=shares.astype(np.float32))
  longest = found.counts.max(initial=0)
  width = next(width for width in widths if width >= longest)
  return found.padded(width), weights.padded(width)
