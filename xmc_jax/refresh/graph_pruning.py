"""Prunes edges of a metadata graph whose ends have dissimilar embeddings (RAMEN, appendix A).

docs/formulas.md, "RAMEN".
"""

import concurrent.futures
from collections.abc import Callable, Iterable

import numpy as np
import scipy.sparse as sp

from xmc_jax.distributed import split_table
from xmc_jax.distributed.split_table import SplitTable, Table
from xmc_jax.ops.unit_rows import unit_rows

_CHUNK = 1 << 13  # edges that a core scores at a time


def kept_edges(
  edges: sp.csr_matrix,
  rows: Table,
  anchors: np.ndarray,
  *,
  threshold: float = 0.0,
  centred: bool = False,
  progress: Callable[[int], None] | None = None,
) -> np.ndarray:
  """Returns which edges stay: those whose ends have a cosine above the threshold.

  Args:
    edges: CSR `[N, A]`, points or labels by anchors.
    rows: `[N, D]` embeddings of the points or labels, of length 1; if they are split over the processes,
      each process judges the edges of its rows.
    anchors: `[A, D]` embeddings of the anchors, of length 1.
    threshold: 0 in the paper.
    centred: True subtracts the mean of `rows` from rows and the mean of `anchors` from anchors before the
      cosine, so that the inner products of all pairs sum to 0. Our addition: the paper does not centre.
    progress: called with the number of edges done.

  Returns:
    `[nnz]` bool, in the order of `edges.indices`. Takes extra memory for 16,384 vectors per core.
  """
  means = [_mean(table) for table in (rows, anchors)] if centred else []
  if not isinstance(rows, SplitTable):
    return _judged(edges, rows, anchors, means, threshold, progress or (lambda done: None))
  own = edges[rows.own_rows]
  first, share = int(edges.indptr[rows.first]), edges.nnz / max(1, own.nnz)
  kept = np.zeros(edges.nnz, np.uint8)
  kept[first : first + own.nnz] = _judged(
    own, rows.own, anchors, means, threshold, lambda done: progress(round(share * done)) if progress else None
  )
  return split_table.sum_over_processes(kept).astype(bool)


def _mean(table: Table) -> np.ndarray:
  """Returns the mean row `[D]` of a table."""
  if isinstance(table, SplitTable):
    total = table.own.sum(axis=0, dtype=np.float64) / len(table)
    return split_table.sum_over_processes(total.astype(np.float32))
  return table.mean(axis=0, dtype=np.float64).astype(np.float32)


def _judged(
  edges: sp.csr_matrix,
  rows: np.ndarray,
  anchors: np.ndarray,
  means: list[np.ndarray],
  threshold: float,
  progress: Callable[[int], None],
) -> np.ndarray:
  """Returns which edges stay, `[nnz]`; both ends are without their means, if there are any."""
  kept, ends = np.empty(edges.nnz, bool), edges.indptr[1:]

  def score(start: int) -> int:
    places = np.arange(start, min(start + _CHUNK, edges.nnz))
    owners = np.searchsorted(ends, places, side="right")
    both: Iterable[np.ndarray] = rows[owners], anchors[edges.indices[places]]
    if means:
      both = (unit_rows(vectors - mean, in_place=True) for vectors, mean in zip(both, means))
    kept[places] = np.einsum("ed,ed->e", *both) > threshold
    return int(places[-1]) + 1

  with concurrent.futures.ThreadPoolExecutor() as threads:
    for done in threads.map(score, range(0, edges.nnz, _CHUNK)):
      progress(done)
  return kept
