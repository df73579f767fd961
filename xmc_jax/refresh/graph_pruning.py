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
  own, first, vectors = edges, 0, rows
  if isinstance(rows, SplitTable):
    own, first, vectors = edges[rows.own_rows], int(edges.indptr[rows.first]), rows.own
  kept, share = np.zeros(edges.nnz, np.uint8), edges.nnz / max(1, own.nnz)

  def judge(start: int) -> int:
    places = np.arange(start, min(start + _CHUNK, own.nnz))
    owners = np.searchsorted(own.indptr[1:], places, side="right")
    both: Iterable[np.ndarray] = vectors[owners], anchors[own.indices[places]]
    if means:
      both = (unit_rows(ends - mean, in_place=True) for ends, mean in zip(both, means))
    kept[first + places] = np.einsum("ed,ed->e", *both) > threshold
    return int(places[-1]) + 1

  with concurrent.futures.ThreadPoolExecutor() as threads:
    for done in threads.map(judge, range(0, own.nnz, _CHUNK)):
      if progress:
        progress(round(share * done))
  kept = split_table.sum_over_processes(kept) if isinstance(rows, SplitTable) else kept
  return kept.astype(bool)


def _mean(table: Table) -> np.ndarray:
  """Returns the mean row `[D]` of a table."""
  if isinstance(table, SplitTable):
    total = table.own.sum(axis=0, dtype=np.float64) / len(table)
    return split_table.sum_over_processes(total.astype(np.float32))
  return table.mean(axis=0, dtype=np.float64).astype(np.float32)
