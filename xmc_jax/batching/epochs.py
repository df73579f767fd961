"""Counts the steps of an epoch, and its clusters."""


def epoch_shape(
  num_points: int, batch_size: int, multiple: int = 1, batch_is_cluster: bool = False
) -> tuple[int, int]:
  """Returns `(steps, rows of a batch)` of an epoch.

  Args:
    num_points: number of points with a label to learn.
    batch_size: points in a batch; an upper bound if `batch_is_cluster`.
    multiple: the rows of a batch are a multiple of it; `batch_size` must be one.
    batch_is_cluster: each batch is a cluster, a leaf of a balanced binary tree over points (UniDEC, 2024).
  """
  if not batch_is_cluster:
    return max(1, -(-num_points // batch_size)), batch_size
  clusters = num_clusters(num_points, batch_size)
  return clusters, max(1, -(-num_points // (clusters * multiple))) * multiple


def num_clusters(num_points: int, size: int) -> int:
  """Returns 2^⌈log2(N / C)⌉, at least 1: the number of balanced clusters of at most C = `size` points."""
  return 1 << max(0, (-(-max(1, num_points) // size) - 1).bit_length())
