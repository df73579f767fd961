"""Batches as a function of (seed, step, order): static shapes, built ahead of the device."""

import concurrent.futures
from collections.abc import Callable, Iterator

import numpy as np

from xmc_jax.contract import Batch, BatchSpec, Tokens
from xmc_jax.data import buckets

_ORDER, _DRAW = 0, 1  # separate random streams of one seed


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
    label_chunk: labels in a chunk where all of them join.
    data_axis: B's groups divide by this.
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
    label_chunk: int = 1024,
    data_axis: int = 1,
  ):
    self._queries, self._labels = queries, labels
    truth = learnable(truth, excluded)
    self._truth, self._excluded, self._spec = truth, excluded, spec
    self._batch_size, self._max_length, self._seed = batch_size, max_length, seed
    self.rows = np.flatnonzero(np.diff(truth.indptr)).astype(np.int32)
    self._query_slots = buckets.plan(queries.lengths[self.rows], batch_size, max_length, multiple=data_axis)
    self._width_positives = _longest_row(truth)
    self._width_excluded = _longest_row(excluded)
    if spec.labels == "all":
      self.label_columns, self.label_groups = _all_labels(labels, max_length, label_chunk)
      self._column_of = np.full(len(labels.lengths), -1, np.int32)
      valid = self.label_columns >= 0
      self._column_of[self.label_columns[valid]] = np.flatnonzero(valid)
    else:
      per_row = np.sort(np.minimum(np.diff(truth.indptr), spec.num_positives or self._width_positives))
      drawn = int(per_row[-batch_size:].sum())  # at most
      self._pool_size = min(drawn + spec.num_random_negatives, len(labels.lengths))
      self._pool_slots = buckets.plan(
        labels.lengths,
        self._pool_size,
        max_length,
        weights=_pool_odds(truth, drawn, spec.num_random_negatives),
      )

  @property
  def steps_per_epoch(self) -> int:
    """Whole batches in an epoch; the last one is padded."""
    return max(1, -(-len(self.rows) // self._batch_size))

  def real_token_fraction(self) -> float:
    """Real tokens among those that the device computes, for the queries of an average batch."""
    mean = np.minimum(self._queries.lengths[self.rows], self._max_length).mean() if len(self.rows) else 0.0
    return float(self._batch_size * mean / sum(width * rows for width, rows in self._query_slots))

  def epoch_order(self, epoch: int) -> np.ndarray:
    """`[N']` training rows in the random order of one epoch."""
    return self._generator(_ORDER, epoch).permutation(self.rows)

  def build(self, step: int, order: np.ndarray | None = None) -> Batch:
    """The batch of one step.

    Args:
      step: counted from the start of training.
      order: `[N']` training rows to cut into batches; None is `epoch_order`.

    Returns:
      A Batch of numpy arrays. Where all labels join, `columns` and `labels` are
      empty: they are `label_columns` and `label_groups` in every step.
    """
    epoch, position = divmod(step, self.steps_per_epoch)
    order = self.epoch_order(epoch) if order is None else order
    chosen = order[position * self._batch_size : (position + 1) * self._batch_size]
    rows, queries = self._lay_out(self._queries, chosen, self._query_slots)
    generator = self._generator(_DRAW, step)
    positives = _gather_rows(self._truth, rows, self._width_positives)
    weights = _draw_weights(positives, self._spec.num_positives, generator)
    excluded = _gather_rows(self._excluded, rows, self._width_excluded)
    if self._spec.labels == "all":
      columns, labels = np.zeros(0, np.int32), ()
      column_of = self._column_of
    else:
      columns, labels = self._draw_pool(positives[weights > 0], generator)
      column_of = np.full(len(self._labels.lengths), -1, np.int32)
      column_of[columns[columns >= 0]] = np.flatnonzero(columns >= 0)
    return Batch(
      rows=rows,
      queries=queries,
      columns=columns,
      labels=labels,
      positives=_to_columns(positives, column_of),
      weights=weights,
      excluded=_to_columns(excluded, column_of),
    )

  def _generator(self, stream: int, index: int) -> np.random.Generator:
    return np.random.default_rng((self._seed, stream, index))

  def _draw_pool(self, drawn: np.ndarray, generator) -> tuple[np.ndarray, tuple[Tokens, ...]]:
    """Unique drawn positives, filled up with uniformly drawn labels that are not among them."""
    pool = np.unique(drawn)
    extra = min(self._spec.num_random_negatives, self._pool_size - len(pool))
    if extra > 0:
      others = np.setdiff1d(np.arange(len(self._labels.lengths), dtype=np.int32), pool, assume_unique=True)
      pool = np.concatenate([pool, generator.choice(others, min(extra, len(others)), replace=False)])
    return self._lay_out(self._labels, pool.astype(np.int32), self._pool_slots)

  def _lay_out(self, table, ids: np.ndarray, slots: buckets.Slots) -> tuple[np.ndarray, tuple[Tokens, ...]]:
    """Texts in slots: `[B]` ids in slot order, -1 for padding, and a token group a width."""
    lengths = table.lengths[ids]
    order = buckets.assign(slots, lengths)
    if order is None:
      slots = buckets.widest_only(slots)
      order = buckets.assign(slots, lengths)
    laid_out = np.where(order >= 0, ids[order] if len(ids) else -1, -1).astype(np.int32)
    edges = np.cumsum([rows for _, rows in slots])[:-1]
    groups = tuple(table.gather(part, width) for part, (width, _) in zip(np.split(laid_out, edges), slots))
    return laid_out, groups


def learnable(truth, excluded):
  """CSR `[N, L]` true labels less the excluded pairs: what the loss of a row can count on."""
  left = truth - truth.multiply(excluded)
  left.eliminate_zeros()
  left.sort_indices()
  return left.tocsr()


def _all_labels(labels, max_length: int, chunk: int) -> tuple[np.ndarray, tuple[Tokens, ...]]:
  """Every label once, in chunks of one width each: `[S]` label ids and `[chunks, n, T]` groups."""
  columns, groups = [], []
  for width, members in buckets.split_by_width(labels.lengths, max_length):
    rows = min(chunk, -(-len(members) // 8) * 8)
    num_chunks = -(-len(members) // rows)
    padded = np.full(num_chunks * rows, -1, np.int32)
    padded[: len(members)] = members
    ids, lengths = labels.gather(padded, width)
    groups.append(Tokens(ids.reshape(num_chunks, rows, width), lengths.reshape(num_chunks, rows)))
    columns.append(padded)
  return np.concatenate(columns), tuple(groups)


def _pool_odds(truth, num_drawn: int, num_random: int) -> np.ndarray:
  """How likely a pool's slot goes to each label, `[L]`: some are drawn as positives, some uniformly.

  A label counts once, however often it is drawn, so that its share is its chance to be drawn at all.
  """
  frequency = np.bincount(truth.indices, minlength=truth.shape[1]) / max(truth.nnz, 1)
  return -np.expm1(-num_drawn * frequency) + num_random / truth.shape[1]


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
