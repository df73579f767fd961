"""Clusters vectors by cosine: into equal sizes by recursive halving, or into any sizes by k-means."""

import jax
import jax.numpy as jnp
import numpy as np

from xmc_jax.distributed.split_table import SplitTable
from xmc_jax.models import normalize
from xmc_jax.refresh import halving, split_clusters
from xmc_jax.types import Array

_SCORE_BYTES = 1 << 26  # bytes of cosines that k-means computes at a time


def balanced_clusters(vectors: Array | SplitTable, num_clusters: int, *, key: Array) -> np.ndarray:
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
    vectors: `[N, D]`, finite, of any length; N may be 0. If they are split over the processes, each process
      halves some of the groups (split_clusters.py), and the result differs by rounding.
    num_clusters: a power of two. If it exceeds N, sizes are 0 and 1.
    key: a JAX random key. The result depends only on it and the vectors.

  Returns:
    `[N]` int32, the cluster of each vector. The two halves of one group have adjacent numbers.

  Raises:
    ValueError: `num_clusters` is not a power of two, or a vector is not finite.

  Source: NGAME, WSDM 2023; the halving is that of SiameseXML, ICML 2021. docs/formulas.md, "NGAME batches".

  Example:
    >>> import jax, numpy as np
    >>> vectors = np.array([[1, 0.1], [0.1, 1], [1, 0.2], [0.2, 1]], np.float32)
    >>> clusters = balanced_clusters(vectors, 2, key=jax.random.key(0))
    >>> bool(clusters[0] == clusters[2] != clusters[1] == clusters[3])
    True
  """
  num_vectors, depth = len(vectors), max(num_clusters, 1).bit_length() - 1
  if num_clusters != 1 << depth:
    raise ValueError(f"num_clusters={num_clusters} is not a power of two")
  levels = min(depth, max(0, num_vectors - 1).bit_length())  # then every group has one vector or none
  if isinstance(vectors, SplitTable):
    return split_clusters.find(vectors, levels, key=key) << (depth - levels)
  vectors = halving.finite_matrix(vectors)
  if num_vectors == 0:
    return np.zeros(0, np.int32)
  order = halving.shuffled(num_vectors, key)
  rows = halving.unit_rows(vectors, order)[None]
  del vectors  # a copy on the device
  parts = [(rows, jnp.asarray(order[None]))]
  del rows
  members = halving.halve(parts, levels)
  clusters = np.empty(num_vectors, np.int32)
  cluster, place = np.nonzero(members >= 0)
  clusters[members[cluster, place]] = cluster << (depth - levels)
  return clusters


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
    ValueError: there are fewer vectors than clusters, or a vector is not finite.

  Source: Dhillon and Modha, Concept decompositions for large sparse text data, Machine Learning 42, 2001.

  Example:
    >>> import jax, numpy as np
    >>> spherical_kmeans(np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]]), 1, key=jax.random.key(0))
    array([0, 0, 0], dtype=int32)
  """
  vectors = halving.finite_matrix(vectors)
  if not 1 <= num_clusters <= len(vectors):
    raise ValueError(f"num_clusters={num_clusters} must be from 1 to the number of vectors, {len(vectors)}")
  rows = halving.unit_rows(vectors, np.arange(len(vectors), dtype=np.int32))
  seeds = halving.shuffled(len(vectors), key)[:num_clusters]
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
    centroids = jnp.where(empty[:, None], restarts, normalize(sums))
    return i + 1, centroids, clusters, jnp.any(clusters != last)

  start = jnp.int32(0), rows[seeds], jnp.full(num_rows, -1, jnp.int32), jnp.bool_(True)
  return jax.lax.while_loop(lambda s: (s[0] < num_iterations) & s[3], step, start)[2]
