"""Batches as a function of (seed, step, order): static shapes, built ahead of the device."""

import concurrent.futures
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import numpy as np

from xmc_jax.contract import Batch, BatchSpec
from xmc_jax.data import buckets
from xmc_jax.data.pools import label_table, make_pool

_ORDER, _DRAW = 0, 1  # separate random streams of one seed
ON_HOST = ("leaves", "shortlist")  # what `build` reads of `fresh`; steps get the rest


class BatchBuilder:
  """Builds the host side of any training step, in any order, from any thread.

  Args:
    queries: token table of the training points.
    labels: token table of the labels.
    truth: CSR `[N, L]`, true labels; rows without any are left out of training.
    excluded: CSR `[N, L]`, pairs that the loss must not see, be they true or not.
    spec: which labels join, how many positives are drawn.
    batch_size: B, over all devices.
    max_length: the widest token row.
    seed: of the order and of the draws.
    data_axis, label_axis: of the mesh; query groups divide by the first, label groups by their product.
    held_queries, held_labels: which rows of a group this process holds: it reads no other texts. None is all.

  Attributes:
    rows: `[N']` int32, the training rows that have something to learn from.
    vectors: `[N, D]` points under a frozen encoder, where `spec.frozen`; set before the first batch.
  """

  def __init__(
    self,
    queries,
    labels,
    truth,
    excluded,
    spec: BatchSpec,
    *,
    batch_size: int,
    max_length: int,
    seed: int,
    data_axis: int = 1,
    label_axis: int = 1,
    held_queries: buckets.Held | None = None,
    held_labels: buckets.Held | None = None,
  ):
    self._queries, self._labels = queries, labels
    truth = learnable(truth, excluded)
    self._truth, self._excluded, self._spec = truth, excluded, spec
    self._batch_size, self._max_length, self._seed = batch_size, max_length, seed
    self._data_axis, self._held = data_axis, held_queries
    self.rows = np.flatnonzero(np.diff(truth.indptr)).astype(np.int32)
    self.vectors, self._last_order = None, (None, None, None)
    self._query_slots = buckets.plan(
      queries.lengths[self.rows], batch_size, max_length, multiple=data_axis, clump=spec.clump
    )
    self._width_positives = _longest_row(truth)
    self._width_excluded = _longest_row(excluded)
    self._pool = make_pool(
      labels,
      truth,
      spec,
      batch_size=batch_size,
      max_length=max_length,
      num_shards=data_axis * label_axis,
      held=held_labels,
    )
    self.label_columns, self.label_groups = self._pool.columns, self._pool.groups
    self.every_label = ()
    if spec.num_fresh_negatives:
      self.every_label = label_table(labels, max_length, data_axis * label_axis, held_labels)

  @property
  def steps_per_epoch(self) -> int:
    """Whole batches in an epoch; the last one is padded."""
    return max(1, -(-len(self.rows) // self._batch_size))

  def real_token_fraction(self) -> float:
    """Real tokens among those that the device computes, for the queries of an average batch."""
    mean = np.minimum(self._queries.lengths[self.rows], self._max_length).mean() if len(self.rows) else 0.0
    return float(self._batch_size * mean / sum(width * rows for width, rows in self._query_slots))

  def real_label_token_fraction(self) -> float:
    """The same for the labels, where all of them join; 0 where they do not."""
    computed = sum(group.ids.size for group in self.label_groups)
    lengths = np.minimum(self._labels.lengths, self._max_length)
    return float(lengths.sum() / computed) if computed else 0.0

  def epoch_order(self, epoch: int, leaves: np.ndarray | None = None) -> np.ndarray:
    """`[N']` training rows in the order of one epoch.

    Args:
      epoch: counted from 0.
      leaves: `[N]` cluster of each training row; those of one cluster stand together, clusters in random
        order (NGAME, Dahiya et al. 2023). By default the order is random.
    """
    generator = self._generator(_ORDER, epoch)
    order = generator.permutation(self.rows)
    if leaves is None:
      return order
    place = generator.permutation(int(leaves.max()) + 1)
    return order[np.argsort(place[leaves[order]], kind="stable")]

  def _order(self, epoch: int, leaves: np.ndarray | None) -> np.ndarray:
    """`epoch_order`, made once an epoch."""
    known_epoch, known_leaves, order = self._last_order
    if known_epoch != epoch or known_leaves is not leaves:
      order = self.epoch_order(epoch, leaves)
      self._last_order = epoch, leaves, order
    return order

  def build(self, step: int, fresh: Mapping[str, np.ndarray] = MappingProxyType({})) -> Batch:
    """The batch of one step.

    Args:
      step: counted from the start of training.
      fresh: what refreshes made: 'leaves' `[N]`, clusters that batches are cut from (see `epoch_order`), and
        'shortlist' `[N, K]`, hard negatives of each row, padded with -1.

    Returns:
      A Batch of numpy arrays. Where every label is a column, `columns` and `labels` are
      empty: they are `label_columns` and `label_groups` in every step, as `every_label` is.
    """
    epoch, position = divmod(step, self.steps_per_epoch)
    order = self._order(epoch, fresh.get("leaves"))
    rows, queries, vectors = self._points(
      order[position * self._batch_size : (position + 1) * self._batch_size]
    )
    generator = self._generator(_DRAW, step)
    positives = _gather_rows(self._truth, rows, self._width_positives)
    weights = _draw_weights(positives, self._spec.num_positives, generator)
    excluded = _gather_rows(self._excluded, rows, self._width_excluded)
    listed = self._draw_hard(rows, fresh.get("shortlist"), generator)
    pool = self._pool.draw(positives[weights > 0], listed, generator)
    return Batch(
      rows=rows,
      queries=queries,
      columns=pool.columns,
      labels=pool.labels,
      positives=_to_columns(positives, pool.column_of),
      weights=weights,
      excluded=_to_columns(excluded, pool.column_of),
      vectors=vectors,
    )

  def _points(self, chosen: np.ndarray) -> tuple[np.ndarray, tuple, np.ndarray | tuple[()]]:
    """`(rows [B], queries, vectors)` of the training rows of a batch; one of the latter two is empty."""
    if not self._spec.frozen:
      return *buckets.lay_out(self._queries, chosen, self._query_slots, self._data_axis, self._held), ()
    rows = np.full(self._batch_size, -1, np.int32)
    rows[: len(chosen)] = chosen
    return rows, (), np.where(rows[:, None] >= 0, self.vectors[np.maximum(rows, 0)], 0)

  def _generator(self, stream: int, index: int) -> np.random.Generator:
    return np.random.default_rng((self._seed, stream, index))

  def _draw_hard(self, rows: np.ndarray, shortlist, generator) -> np.ndarray | None:
    """Labels drawn uniformly from each row's shortlist, `[H]`; None where there is no shortlist yet."""
    if shortlist is None or not self._spec.num_hard_negatives:
      return None
    listed = np.where(rows[:, None] >= 0, shortlist[rows], -1)
    drawn = _draw_weights(listed, self._spec.num_hard_negatives, generator) > 0
    return listed[drawn]


def learnable(truth, excluded):
  """CSR `[N, L]` true labels less the excluded pairs: what the loss of a row can count on."""
  left = truth - truth.multiply(excluded)
  left.eliminate_zeros()
  left.sort_indices()
  return left.tocsr()


def _longest_row(matrix) -> int:
  return max(1, int(np.diff(matrix.indptr).max(initial=0)))


def _gather_rows(matrix, rows: np.ndarray, width: int) -> np.ndarray:
  """The column ids of CSR rows, `[len(rows), width]` int32, padded with -1; row -1 is empty."""
  safe = np.maximum(rows, 0)
  starts = matrix.indptr[safe]
  counts = np.where(rows >= 0, matrix.indptr[safe + 1] - starts, 0)
  inside = np.arange(width) < counts[:, None]
  out = np.full((len(rows), width), -1, np.int32)
  owner, offset = np.nonzero(inside)
  out[owner, offset] = matrix.indices[starts[owner] + offset]
  return out


def _draw_weights(positives: np.ndarray, num_positives: int, generator) -> np.ndarray:
  """Loss weights that add up to 1 over each row's drawn positives, `[B, P]` float32."""
  valid = positives >= 0
  if 0 < num_positives < positives.shape[1]:
    tickets = np.where(valid, generator.random(positives.shape), 2.0)
    last = np.partition(tickets, num_positives - 1, axis=1)[:, num_positives - 1, None]
    valid = valid & (tickets <= last)
  return (valid / np.maximum(valid.sum(1, keepdims=True), 1)).astype(np.float32)


def _to_columns(labels: np.ndarray, column_of: np.ndarray) -> np.ndarray:
  """Label ids to pool columns; -1 stays -1, and so becomes a label that is not in the pool."""
  return np.where(labels >= 0, column_of[labels], -1).astype(np.int32)


def ahead(build: Callable[[int], Batch], first: int, last: int, depth: int = 3) -> Iterator[Batch]:
  """Batches of the steps `first .. last - 1`, built by a host thread up to `depth` steps ahead."""
  with concurrent.futures.ThreadPoolExecutor(1, "batches") as pool:
    waiting = [pool.submit(build, step) for step in range(first, min(first + depth, last))]
    try:
      for step in range(first, last):
        batch = waiting.pop(0).result()
        if step + depth < last:
          waiting.append(pool.submit(build, step + depth))
        yield batch
    finally:
      for future in waiting:
        future.cancel()
