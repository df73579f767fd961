"""Computes label centroids: the mean embeddings of labels' training points."""

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from xmc_jax.distributed import split_table
from xmc_jax.distributed.split_table import SplitTable, Table

_BLOCK_BYTES = 1 << 25  # bytes of the centroids that processes add up at a time


def label_centroids(points: Table, truth: sp.csr_matrix, texts: Callable[[], Table]) -> Table:
  """Returns the mean embedding of each label's training points (DEXA, section 6; PRIME, section 3.2).

  Args:
    points: `[N, D]` float32; if they are split over the processes, so are the centroids.
    truth: CSR `[N, L]`, true labels; every value above 0 counts as 1.
    texts: `() -> [L, D]`, used for labels without points; not called if every label has one.

  Returns:
    `[L, D]` float32, not normalised.
  """
  has_label = (truth > 0).T.tocsr().astype(np.float32)
  counts = np.diff(has_label.indptr)
  if isinstance(points, SplitTable):
    return _split_centroids(points, has_label, texts)
  centroids = np.asarray(has_label @ points, np.float32)
  centroids /= np.maximum(counts, 1)[:, None]
  if not counts.all():
    centroids[counts == 0] = split_table.whole(texts())[counts == 0]
  return centroids


def _split_centroids(points: SplitTable, has_label: sp.csr_matrix, texts: Callable[[], Table]) -> SplitTable:
  """Adds each process's points to the centroids of a block of labels, of which one process keeps each."""
  num_labels, width = has_label.shape[0], points.shape[1]
  counts, kept = np.diff(has_label.indptr), split_table.own_range(num_labels)
  of_own = has_label[:, points.own_rows]
  centroids = np.empty((len(kept), width), np.float32)
  size = max(1, _BLOCK_BYTES // (4 * width))
  for start in range(0, num_labels, size):
    rows = slice(start, start + size)
    means = split_table.sum_over_processes(np.asarray(of_own[rows] @ points.own, np.float32))
    means = means / np.maximum(counts[rows], 1)[:, None].astype(np.float32)
    low, high = max(start, kept.start), min(start + len(means), kept.stop)
    if low < high:
      centroids[low - kept.start : high - kept.start] = means[low - start : high - start]
  if not counts.all():
    without = np.flatnonzero(counts[kept.start : kept.stop] == 0)
    embedded = texts()
    centroids[without] = (embedded.own if isinstance(embedded, SplitTable) else embedded[kept])[without]
  return SplitTable(centroids, split_table.row_starts(num_labels))
