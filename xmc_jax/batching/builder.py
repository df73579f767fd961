"""Builds training batches as a function of (seed, step, order), in static shapes."""

import concurrent.futures
import functools
from collections.abc import Callable, Generator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import scipy.sparse as sp

from xmc_jax.batching import length_buckets, ragged
from xmc_jax.batching.graph_anchors import AnchorSampler, GraphEdges, is_of_labels
from xmc_jax.batching.label_pools import Pool, in_columns, label_frequency, label_table, make_pool
from xmc_jax.batching.length_buckets import Layout, LocalRows, every_row
from xmc_jax.batching.positives import choose_widths
from xmc_jax.data.dataset import unfiltered
from xmc_jax.data.tokens import TokenTable
from xmc_jax.types import CLUSTERS, KEPT, Batch, BatchSpec, SampledAnchors, Tokens

_ORDER, _SAMPLE, _ANCHOR = 0, 1, 2  # separate random streams of one seed


class BatchBuilder:
  """Builds the host side of any training step, in any order, from any thread.

  Args:
    queries: token table of the training points.
    labels: token table of the labels.
    truth: CSR `[N, L]`, true labels; rows without labels are not trained on.
    excluded: CSR `[N, L]`, pairs that the loss must not see, whether true or not.
    spec: which labels are in the pool, and how many positives are sampled.
    batch_size: B, over all devices; an upper bound where each batch is a cluster (`spec.batch_is_cluster`).
    max_length: the widest token row.
    seed: fixes the order of the points and every sample.
    data_axis, label_axis: mesh sizes; query groups divide by the first, label groups by their product.
    local_queries, local_labels: which rows of a group this process holds; it reads only those.
    label_weights: `[L]` positive sampling weights of a row's positives; None samples uniformly.
    by_relevance: positives are sampled in proportion to their values in `truth`; where all count, they weigh
      by these.
    sides: the sides of metadata graphs, by name.
    vectors: reads the points' embeddings when the first batch is built, if `spec.frozen`.

  Attributes:
    rows: `[N']` int32, the training rows that have at least one label to learn.
    steps_per_epoch: batches in an epoch; only the last is padded, or any one where batches are clusters.
  """

  def __init__(
    self,
    queries: TokenTable,
    labels: TokenTable,
    truth: sp.csr_matrix,
    excluded: sp.csr_matrix,
    spec: BatchSpec,
    *,
    batch_size: int,
    max_length: int,
    seed: int,
    data_axis: int = 1,
    label_axis: int = 1,
    local_queries: LocalRows = every_row,
    local_labels: LocalRows = every_row,
    label_weights: np.ndarray | None = None,
    by_relevance: bool = False,
    sides: Mapping[str, GraphEdges] = MappingProxyType({}),
    vectors: Callable[[], np.ndarray] | None = None,
  ):
    self._queries, self._labels, self._label_weights = queries, labels, label_weights
    truth = unfiltered(truth, excluded)
    self._truth, self._excluded, self._spec = truth, excluded, spec
    self._by_relevance = by_relevance
    self._seed = seed
    self._layout = Layout(max_length, data_axis, local_queries)
    of_labels = Layout(max_length, data_axis * label_axis, local_labels)
    self.rows = np.flatnonzero(np.diff(truth.indptr)).astype(np.int32)
    self._read_vectors = vectors or (lambda: np.zeros((0, 0), np.float32))
    self._last_order: tuple[int | None, np.ndarray | None, Any] = (None, None, None)
    num_points, is_cluster = len(self.rows), spec.batch_is_cluster
    self.steps_per_epoch, batch_size = epoch_shape(num_points, batch_size, data_axis, is_cluster)
    self._batch_size = batch_size
    group_size = length_buckets.group_size_in_cluster(batch_size) if is_cluster else spec.cluster_size
    lengths = queries.lengths[self.rows]
    self._query_slots = length_buckets.plan(
      lengths, batch_size, max_length, multiple=data_axis, group_size=group_size
    )
    self._most_real_tokens = None
    if of_labels.num_shards == 1:
      self._most_real_tokens = length_buckets.most_real_tokens(
        self._query_slots, lengths, group_size=group_size
      )
    self._width_excluded = max(1, int(np.diff(excluded.indptr).max(initial=0)))
    self._pool = make_pool(labels, truth, spec, batch_size, of_labels, label_weights)
    self._samplers = self._anchor_samplers(sides, of_labels)
    self.label_columns, self.label_groups = self._pool.columns, self._pool.groups
    self._positive_widths = self._choose_widths()
    self.every_label: Tokens | tuple[()] = ()
    if spec.num_fresh_negatives:
      self.every_label = label_table(labels, of_labels)

  @functools.cached_property
  def vectors(self) -> np.ndarray:
    """Returns `[N, D]` embeddings of the points, if the encoder is frozen."""
    return self._read_vectors()

  def _choose_widths(self) -> tuple[int, ...]:
    """Returns the widths that a batch's array of positives may have."""
    counts = np.diff(self._truth.indptr)[self.rows]
    sampled = np.minimum(counts, self._spec.num_positives) if self._spec.num_positives else counts
    found = (ragged.with_values(self._truth) @ self._pool.probabilities)[self.rows]
    others = found * (1 - sampled / counts)  # that other rows bring, on average
    in_pool = np.minimum(counts, sampled + others + 2 * np.sqrt(others))
    return choose_widths(counts, in_pool, self._batch_size)

  def _anchor_samplers(self, sides: Mapping[str, GraphEdges], layout: Layout) -> dict[str, AnchorSampler]:
    # Probability that a batch has each point, and each label among the positives sampled for its points.
    points = np.zeros(self._truth.shape[0])
    points[self.rows] = min(1.0, self._batch_size / max(1, len(self.rows)))
    labels = -np.expm1(-self._batch_size * label_frequency(self._truth, self._label_weights, 1))
    return {
      name: AnchorSampler(
        side,
        num_rows=self._batch_size,
        frequency=labels if is_of_labels(name) else points,
        layout=layout,
      )
      for name, side in sides.items()
    }

  def epoch_order(self, epoch: int, clusters: np.ndarray | None = None) -> np.ndarray:
    """Returns `[N']`, the training rows in the order of one epoch.

    Args:
      epoch: counted from 0.
      clusters: `[N]` cluster of each training row. Rows of one cluster are kept together and the clusters are
        in random order (NGAME, Dahiya et al. 2023). None puts the rows in random order.
    """
    generator = self._generator(_ORDER, epoch)
    order = generator.permutation(self.rows)
    if clusters is None:
      return order
    place = generator.permutation(int(clusters.max()) + 1)
    return order[np.argsort(place[clusters[order]], kind="stable")]

  def _order(self, epoch: int, clusters: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns the cached `epoch_order` and the bounds of its batches, `[steps_per_epoch + 1]`."""
    known_epoch, known_clusters, found = self._last_order
    if known_epoch != epoch or known_clusters is not clusters:
      order = self.epoch_order(epoch, clusters)
      found = order, self._cuts(order, clusters)
      self._last_order = epoch, clusters, found
    return found

  def _cuts(self, order: np.ndarray, clusters: np.ndarray | None) -> np.ndarray:
    steps = np.arange(self.steps_per_epoch + 1)
    if not self._spec.batch_is_cluster:
      return np.minimum(steps * self._batch_size, len(order))
    if clusters is None:
      return steps * len(order) // self.steps_per_epoch
    begins = np.flatnonzero(np.diff(clusters[order], prepend=-1))
    # A cluster without labelled points has no batch; the last batches of the epoch are then empty.
    return np.concatenate([begins, np.full(len(steps) - len(begins), len(order))])

  def build(self, step: int, refreshed: Mapping[str, np.ndarray] = MappingProxyType({})) -> Batch:
    """Builds the batch of one step.

    Args:
      step: counted from the start of training.
      refreshed: the results of refreshes: 'clusters' `[N]`, the cluster of each row (see `epoch_order`);
        'shortlist' `[N, K]`, the hard negatives of each row, padded with -1; and 'kept_SIDE' `[nnz]` bool,
        the edges of that side that were not pruned, from which anchors are sampled.

    Returns:
      A Batch of numpy arrays. If every label is a column, `columns` and `labels` are left empty: use the
      builder's `label_columns` and `label_groups`. `every_label` is left empty too: use the builder's.
    """
    epoch, position = divmod(step, self.steps_per_epoch)
    order, cuts = self._order(epoch, refreshed.get(CLUSTERS))
    rows, queries, vectors = self._points(order[cuts[position] : cuts[position + 1]])
    generator = self._generator(_SAMPLE, step)
    places = ragged.places_of(self._truth, rows)
    truth = places._replace(values=self._truth.indices[places.values])
    relevance = self._truth.data[places.values] if self._by_relevance else np.ones(len(truth.values))
    sampling_weights = relevance if self._by_relevance else None
    if self._label_weights is not None:
      sampling_weights = relevance * self._label_weights[truth.values]
    sampled = ragged.sample(truth.counts, self._spec.num_positives, generator, sampling_weights)
    listed = self._sample_hard(rows, refreshed.get("shortlist"), generator)
    pool = self._pool.sample(truth.values[sampled], truth.values[~sampled], listed, generator)
    worth = sampled if self._spec.num_positives else relevance
    positives, weights = in_columns(truth, worth, pool.column_of, self._positive_widths)
    filtered = ragged.of_matrix(self._excluded, rows)
    columns = pool.column_of[filtered.values]
    excluded = filtered.only(columns >= 0, columns).padded(self._width_excluded)
    return Batch(
      rows=rows,
      queries=queries,
      columns=pool.columns,
      labels=pool.labels,
      positives=positives,
      weights=weights,
      excluded=excluded,
      vectors=vectors,
      dropped=pool.dropped,
      sampled_anchors=self._sample_anchors(rows, truth.only(sampled, truth.values), pool, step, refreshed),
      shared=ragged.common(truth, self._truth.shape[1]) if self._spec.shared else (),
    )

  def _sample_anchors(
    self, rows: np.ndarray, sampled: ragged.Ragged, pool: Pool, step: int, refreshed: Mapping[str, np.ndarray]
  ) -> dict[str, SampledAnchors]:
    """Samples anchors of the batch's points, and of one sampled positive of each point (no label twice)."""
    if not self._samplers:
      return {}
    generator = self._generator(_ANCHOR, step)
    chosen = np.unique(sampled.values[ragged.sample(sampled.counts, 1, generator)])
    labels = length_buckets.padded(chosen, len(rows))
    of_points: tuple[np.ndarray, np.ndarray] = rows, np.where(rows >= 0, np.arange(len(rows)), -1)
    of_labels: tuple[np.ndarray, np.ndarray] = labels, np.where(labels >= 0, pool.column_of[labels], -1)
    return {
      name: sampler.sample(
        *(of_labels if is_of_labels(name) else of_points), refreshed.get(KEPT + name), generator
      )
      for name, sampler in self._samplers.items()
    }

  def _points(self, chosen: np.ndarray) -> tuple[np.ndarray, tuple, np.ndarray | tuple[()]]:
    """Returns `(rows [B], queries, vectors)` of a batch; either `queries` or `vectors` is empty."""
    if not self._spec.frozen:
      laid_out = length_buckets.lay_out(
        self._queries, chosen, self._query_slots, self._layout, self._most_real_tokens
      )
      return *laid_out, ()
    rows = length_buckets.padded(chosen, self._batch_size)
    return rows, (), np.where(rows[:, None] >= 0, self.vectors[np.maximum(rows, 0)], 0)

  def _generator(self, stream: int, index: int) -> np.random.Generator:
    return np.random.default_rng((self._seed, stream, index))

  def _sample_hard(
    self, rows: np.ndarray, shortlist: np.ndarray | None, generator: np.random.Generator
  ) -> np.ndarray | None:
    """Samples labels uniformly from each row's shortlist, `[H]`; None if there is no shortlist yet."""
    if shortlist is None or not self._spec.num_hard_negatives:
      return None
    listed = ragged.of_padded(np.where(rows[:, None] >= 0, shortlist[rows], -1))
    return listed.values[ragged.sample(listed.counts, self._spec.num_hard_negatives, generator)]


def epoch_shape(
  num_points: int, batch_size: int, multiple: int = 1, batch_is_cluster: bool = False
) -> tuple[int, int]:
  """Returns `(steps, rows of a batch)` of an epoch of points with a label to learn.

  If each batch is a cluster, a leaf of a balanced binary tree over points (UniDEC, 2024), `batch_size` is an
  upper bound, and the rows are a multiple of `multiple`; else `batch_size` must be a multiple of it.
  """
  if not batch_is_cluster:
    return max(1, -(-num_points // batch_size)), batch_size
  clusters = num_clusters(num_points, batch_size)
  return clusters, max(1, -(-num_points // (clusters * multiple))) * multiple


def num_clusters(num_points: int, size: int) -> int:
  """Returns 2^⌈log2(N / C)⌉, at least 1: the number of balanced clusters of at most C = `size` points."""
  return 1 << max(0, (-(-max(1, num_points) // size) - 1).bit_length())


def prefetch(
  build: Callable[[int], Batch], first: int, last: int, depth: int = 3
) -> Generator[Batch, None, None]:
  """Yields the batches of steps `first .. last - 1`; a host thread builds them up to `depth` steps ahead."""
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
