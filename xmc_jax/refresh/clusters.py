"""Clusters vectors by cosine: equal sizes by recursive halving, or plain spherical k-means."""

import concurrent.futures
import functools
import operator
import os

import jax
import jax.numpy as jnp
import numpy as np

from xmc_jax.distributed import runtime
from xmc_jax.types import Array

_STARTS = 6  # pairs of vectors that the search for a group's halves starts from; the best result wins
_ITERATIONS = 6  # per start, at most
_LAST_ITERATIONS = 10  # from the best result, at most
_TOLERANCE = 1e-4  # iterations stop when the gain in mean cosine is below this
_SAMPLE = 1024  # vectors of a group that the starts use; the last iterations use all
_PART_BYTES = 1 << 20  # bytes of the groups that a core handles together: they stay in its cache
_SCORE_BYTES = 1 << 26  # bytes of cosines that k-means computes at a time


def balanced_clusters(vectors: Array, num_clusters: int, *, key: Array) -> np.ndarray:
  r"""Finds clusters whose sizes differ by at most one, by repeatedly halving all groups.

  A group X of unit vectors is split into halves A and B, whose sizes differ by at most one. Lloyd's
  iterations approach a local maximum of:

  .. math::
    \Big\| \sum_{x \in A} x \Big\| + \Big\| \sum_{x \in B} x \Big\|

  This is the sum of the cosines of all vectors to the centroid of their half. An iteration takes the
  difference of the centroids as direction, and the vectors farthest along it as A. The groups of a level
  differ in size by at most one, so a level is one batch of regular work; on a CPU it is split into parts that
  fit into a core's cache. The number of steps is bounded: equal or zero vectors are split arbitrarily.

  Takes twice the memory of the float32 vectors in addition to them, on the first device, or on the host's CPU
  if the device has too little memory.

  Args:
    vectors: `[N, D]`, finite, of any length; N may be 0.
    num_clusters: a power of two. If it exceeds N, sizes are 0 and 1.
    key: a JAX random key. The result depends only on it and the vectors.

  Returns:
    `[N]` int32, the cluster of each vector. The two halves of one group have adjacent numbers.

  Raises:
    ValueError: `num_clusters` is not a power of two, or the vectors are not a finite `[N, D]`.

  Source: NGAME, WSDM 2023; the halving is that of SiameseXML, ICML 2021. docs/formulas.md, "NGAME batches".

  Example:
    >>> import jax, numpy as np
    >>> vectors = np.array([[1, 0.1], [0.1, 1], [1, 0.2], [0.2, 1]], np.float32)
    >>> clusters = balanced_clusters(vectors, 2, key=jax.random.key(0))
    >>> bool(clusters[0] == clusters[2] != clusters[1] == clusters[3])
    True
  """
  num_clusters = operator.index(num_clusters)
  num_vectors, depth = len(vectors), max(num_clusters, 1).bit_length() - 1
  if num_clusters != 1 << depth:
    nearest = "1" if num_clusters < 1 else f"{1 << depth} or {2 << depth}"
    raise ValueError(f"num_clusters={num_clusters} is not a power of two; the nearest: {nearest}")
  vectors = _finite_matrix(vectors)
  if num_vectors == 0:
    return np.zeros(0, np.int32)
  levels = min(depth, (num_vectors - 1).bit_length())  # then every group has one vector or none
  order = _shuffled(num_vectors, key)
  rows = _unit_rows(vectors, order)[None]
  del vectors  # a copy on the device
  parts = [(rows, jnp.asarray(order[None]))]
  del rows
  members = _halve(parts, levels)
  clusters = np.empty(num_vectors, np.int32)
  cluster, place = np.nonzero(members >= 0)
  clusters[members[cluster, place]] = cluster << (depth - levels)
  return clusters


def _halve(parts: list[tuple[jax.Array, jax.Array]], levels: int) -> np.ndarray:
  """Halves one group, `[1, N, D]` and indices `[1, N]`, `levels` times; returns clusters' indices `[n, P]`.

  Frees the contents of `parts` after the first level.
  """
  devices = list(parts[0][0].devices())
  on_cpu = len(devices) == 1 and devices[0].platform == "cpu"  # several devices need calls in one fixed order

  def split(part):
    return _split(*part, cut=on_cpu and part[0].nbytes > _PART_BYTES)

  num_threads = min(4, os.cpu_count() or 1) if on_cpu else 1
  with concurrent.futures.ThreadPoolExecutor(num_threads, "clusters") as pool:
    for _ in range(levels):
      halves = [part for split_parts in pool.map(split, parts) for part in split_parts]
      parts[:] = halves
      del halves
  return np.concatenate([np.asarray(order) for _, order in parts])


@functools.partial(jax.jit, static_argnames="cut")
def _split(rows: Array, order: Array, *, cut: bool) -> list[tuple[Array, Array]]:
  """Halves each group of a level.

  Args:
    rows: `[G, P, D]` groups of unit vectors in random order, which is kept; padded with zeros.
    order: `[G, P]` int32 indices of the vectors, padded with -1 at the end.
    cut: whether to return the groups as two parts.

  Returns:
    One part or two: `[n, ceil(P / 2), D]` and its indices.
  """
  num_groups, size, dim = rows.shape
  where = order >= 0
  half, num_first = -(-size // 2), (jnp.sum(where, axis=1) + 1) // 2
  scores = _with_fixed_sign(_scores(rows, _direction(rows, where)), where)
  keys, threshold = _largest(scores, where, num_first)
  # First above the threshold, then ties, below it, and padding, each in its previous order.
  rank = jnp.where(where, 2 - (keys > threshold).astype(jnp.int32) - (keys >= threshold), 3)
  places = jnp.sort(rank * size + jnp.arange(size, dtype=jnp.int32), axis=1) % size
  starts = jnp.stack([jnp.zeros_like(num_first), num_first], axis=1)
  wanted = starts[:, :, None] + jnp.arange(half)  # [G, 2, half]
  ends = jnp.stack([num_first, jnp.sum(where, axis=1)], axis=1)
  places = jnp.take_along_axis(places, jnp.minimum(wanted, size - 1).reshape(num_groups, -1), axis=1)
  kept = (wanted < ends[:, :, None]).reshape(num_groups, -1)
  order = jnp.where(kept, jnp.take_along_axis(order, places, axis=1), -1)
  rows = jnp.take_along_axis(rows, places[:, :, None], axis=1, mode="clip") * kept[:, :, None]
  num_parts = 2 if cut else 1
  rows, order = rows.reshape(num_parts, -1, half, dim), order.reshape(num_parts, -1, half)
  return [(rows[part], order[part]) for part in range(num_parts)]


def _with_fixed_sign(scores: Array, where: Array) -> Array:
  """Returns scores `[G, P]`, or their negatives so that rounding never decides which half is first."""
  count = jnp.sum(where, axis=1)
  middle = jnp.sum(jnp.where(where, scores, 0), axis=1) / jnp.maximum(count, 1)
  return jnp.where(((count % 2 == 0) & (scores[:, 0] < middle))[:, None], -scores, scores)


def _direction(rows: Array, where: Array) -> Array:
  """Returns the direction `[G, D]` that gives the best halves found for each group `[G, P, D]`."""
  sample, sampled = rows[:, :_SAMPLE], where[:, :_SAMPLE]
  count = jnp.maximum(jnp.sum(sampled, axis=1), 1)

  def start(i, best):
    pair = jnp.stack([2 * i % count, (2 * i + 1) % count], axis=1)
    pair = jnp.take_along_axis(sample, pair[:, :, None], axis=1)
    found, similarity = _lloyd(sample, sampled, pair[:, 0] - pair[:, 1], _ITERATIONS)
    direction, best_similarity = best
    better = similarity > best_similarity
    return jnp.where(better[:, None], found, direction), jnp.maximum(similarity, best_similarity)

  nothing = jnp.zeros_like(rows[:, 0]), jnp.full(count.shape, -jnp.inf)
  direction, _ = jax.lax.fori_loop(0, _STARTS, start, nothing)
  return _lloyd(rows, where, direction, _LAST_ITERATIONS)[0]


def _lloyd(rows: Array, where: Array, direction: Array, num_iterations: int) -> tuple[Array, Array]:
  """Runs Lloyd's iterations on each group's halves; returns the last direction `[G, D]`, similarity `[G]`."""
  count = jnp.sum(where, axis=1)
  total = _weighted_sum(rows, where)

  def step(state):
    i, direction, last, _ = state
    keys, threshold = _largest(_scores(rows, direction), where, (count + 1) // 2)
    first = _weighted_sum(rows, keys >= threshold)  # includes all ties; padding is zero
    second = total - first
    similarity = jnp.linalg.norm(first, axis=1) + jnp.linalg.norm(second, axis=1)
    return i + 1, _unit(first) - _unit(second), similarity, jnp.any(similarity - last > _TOLERANCE * count)

  start = jnp.int32(0), direction, jnp.full(count.shape, -jnp.inf), jnp.bool_(True)
  _, direction, similarity, _ = jax.lax.while_loop(lambda s: (s[0] < num_iterations) & s[3], step, start)
  return direction, similarity


def _largest(scores: Array, where: Array, count: Array) -> tuple[Array, Array]:
  """Returns integers `[G, P]` in the order of the scores, and each row's `count`-th largest `[G, 1]`."""
  lowest = jnp.iinfo(jnp.int32).min
  bits = jax.lax.bitcast_convert_type(scores, jnp.int32)
  keys = jnp.where(where, bits ^ ((bits >> 31) & jnp.iinfo(jnp.int32).max), lowest)

  def bisect(i, threshold):
    higher = threshold + (jnp.int32(1) << (31 - i))
    return jnp.where(jnp.sum(keys >= higher, axis=1, keepdims=True) >= count[:, None], higher, threshold)

  return keys, jax.lax.fori_loop(0, 32, bisect, jnp.full_like(keys[:, :1], lowest))


def _scores(rows: Array, direction: Array) -> Array:
  return jnp.einsum("gpd,gd->gp", rows, direction, precision=jax.lax.Precision.HIGHEST)


def _weighted_sum(rows: Array, where: Array) -> Array:
  return jnp.einsum("gpd,gp->gd", rows, where.astype(rows.dtype), precision=jax.lax.Precision.HIGHEST)


def spherical_kmeans(
  vectors: Array, num_clusters: int, *, key: Array, num_iterations: int = 20
) -> np.ndarray:
  """Finds clusters of any size by Lloyd's iterations with cosines.

  Starts from randomly chosen vectors. A cluster that loses all its vectors restarts from one of the
  vectors with the lowest cosine to their centroid, so at the end it is empty only if vectors are equal or
  iterations too few. Stops when nothing changes. Computes cosines for a block of vectors at a time,
  never the full `[N, K]`.

  Args:
    vectors: `[N, D]`, finite, of any length.
    num_clusters: K, from 1 to N.
    key: a JAX random key. The result depends only on it and the vectors.
    num_iterations: the most iterations.

  Returns:
    `[N]` int32, the cluster of each vector.

  Raises:
    ValueError: a number is out of range, or the vectors are not a finite `[N, D]`.

  Source: Dhillon and Modha, Concept decompositions for large sparse text data, Machine Learning 42, 2001.

  Example:
    >>> import jax, numpy as np
    >>> spherical_kmeans(np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]]), 1, key=jax.random.key(0))
    array([0, 0, 0], dtype=int32)
  """
  vectors = _finite_matrix(vectors)
  if not 1 <= num_clusters <= len(vectors):
    raise ValueError(f"num_clusters={num_clusters} must be from 1 to the number of vectors, {len(vectors)}")
  if num_iterations < 1:
    raise ValueError(f"num_iterations={num_iterations} must be at least 1")
  rows = _unit_rows(vectors, np.arange(len(vectors), dtype=np.int32))
  seeds = _shuffled(len(vectors), key)[:num_clusters]
  return np.asarray(_kmeans(rows, seeds, num_iterations))


@jax.jit
def _kmeans(rows: Array, seeds: Array, num_iterations: Array) -> Array:
  """Runs `spherical_kmeans` on unit rows `[N, D]`, starting from the rows `seeds` `[K]`."""
  num_rows, num_clusters = len(rows), len(seeds)
  block = max(1, min(num_rows, _SCORE_BYTES // (4 * num_clusters)))

  def nearest(centroids):
    def find(row):
      cosines = jnp.einsum("d,kd->k", row, centroids, precision=jax.lax.Precision.HIGHEST)
      return jnp.argmax(cosines).astype(jnp.int32), jnp.max(cosines)

    return jax.lax.map(find, rows, batch_size=block)

  def step(state):
    i, centroids, last, _ = state
    clusters, cosines = nearest(centroids)
    empty = jnp.zeros(num_clusters, jnp.int32).at[clusters].add(1) == 0
    farthest = jax.lax.top_k(-cosines, num_clusters)[1]
    restarts = rows[farthest[jnp.maximum(jnp.cumsum(empty) - 1, 0)]]
    sums = jax.ops.segment_sum(rows, clusters, num_clusters)
    centroids = jnp.where(empty[:, None], restarts, _unit(sums))
    return i + 1, centroids, clusters, jnp.any(clusters != last)

  start = jnp.int32(0), rows[seeds], jnp.full(num_rows, -1, jnp.int32), jnp.bool_(True)
  return jax.lax.while_loop(lambda s: (s[0] < num_iterations) & s[3], step, start)[2]


@jax.jit
def _unit_rows(vectors: Array, order: Array) -> Array:
  """Returns the vectors `[N, D]` in `order`, as float32 scaled to length 1; zero vectors stay zero."""
  rows = jnp.take(vectors, order, axis=0, mode="clip").astype(jnp.float32)
  largest = jnp.max(jnp.abs(rows), axis=1, keepdims=True, initial=0)
  return _unit(rows / _or_one(largest))  # so that squares neither overflow nor underflow


def _unit(rows: Array) -> Array:
  return rows / _or_one(jnp.sqrt(jnp.sum(rows * rows, axis=1, keepdims=True)))


def _or_one(lengths: Array) -> Array:
  return jnp.where(lengths > 0, lengths, 1)


def _shuffled(count: int, key: Array) -> np.ndarray:
  """Returns a random permutation `[count]` int32, by NumPy: JAX sorts for this, which takes longer."""
  return np.random.default_rng(np.asarray(jax.random.key_data(key))).permutation(count).astype(np.int32)


def _finite_matrix(vectors: Array) -> Array:
  """Checks the vectors and returns them on the device."""
  if np.ndim(vectors) != 2:
    raise ValueError(f"vectors must be [N, D], got the shape {np.shape(vectors)}")
  vectors = jax.device_put(vectors, runtime.device_with_room(2.5 * 4 * np.size(vectors)))
  finite = np.asarray(_finite_rows(vectors))
  if not finite.all():
    first = np.argmin(finite)
    raise ValueError(f"vectors hold NaN or infinity in {np.sum(~finite)} rows, first in row {first}")
  return vectors


@jax.jit
def _finite_rows(vectors: Array) -> Array:
  return jnp.all(jnp.isfinite(vectors), axis=1)
