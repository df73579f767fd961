"""Clusters vectors by cosine into clusters of any size."""

import jax
import jax.numpy as jnp
import numpy as np

from xmc_jax.models import normalize
from xmc_jax.refresh.unit_rows import finite_matrix, shuffled, unit_rows
from xmc_jax.types import Array

_SCORE_BYTES = 1 << 26  # bytes of cosines that are computed at a time


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
  vectors = finite_matrix(vectors)
  if not 1 <= num_clusters <= len(vectors):
    raise ValueError(f"num_clusters={num_clusters} must be from 1 to the number of vectors, {len(vectors)}")
  if num_iterations < 1:
    raise ValueError(f"num_iterations={num_iterations} must be at least 1")
  rows = unit_rows(vectors, np.arange(len(vectors), dtype=np.int32))
  seeds = shuffled(len(vectors), key)[:num_clusters]
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
