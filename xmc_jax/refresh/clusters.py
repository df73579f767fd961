"""Clusters vectors by cosine into clusters of equal sizes, by recursive halving."""

import operator

import jax.numpy as jnp
import numpy as np

from xmc_jax.distributed.split_table import SplitTable
from xmc_jax.refresh import halving, split_clusters
from xmc_jax.refresh.unit_rows import finite_matrix, shuffled, unit_rows
from xmc_jax.types import Array


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
  levels = min(depth, max(0, num_vectors - 1).bit_length())  # then every group has one vector or none
  if isinstance(vectors, SplitTable):
    return split_clusters.find(vectors, levels, key=key) << (depth - levels)
  vectors = finite_matrix(vectors)
  if num_vectors == 0:
    return np.zeros(0, np.int32)
  order = shuffled(num_vectors, key)
  rows = unit_rows(vectors, order)[None]
  del vectors  # a copy on the device
  parts = [(rows, jnp.asarray(order[None]))]
  del rows
  members = halving.halve(parts, levels)
  clusters = np.empty(num_vectors, np.int32)
  cluster, place = np.nonzero(members >= 0)
  clusters[members[cluster, place]] = cluster << (depth - levels)
  return clusters
