"""Edges of a metadata graph that an encoder believes in (RAMEN, Mittal et al. 2024)."""

import concurrent.futures
from collections.abc import Callable

import numpy as np

_CHUNK = 1 << 13  # edges at a time, on each core


def kept_edges(
  edges,
  rows: np.ndarray,
  anchors: np.ndarray,
  *,
  threshold: float = 0.0,
  progress: Callable[[int], None] | None = None,
) -> np.ndarray:
  """Which edges stay: those whose two ends are of a cosine above the threshold.

  Args:
    edges: CSR `[N, A]`, points or labels by anchors.
    rows: `[N, D]` embeddings of the former, of length 1.
    anchors: `[A, D]` of the latter, likewise.
    threshold: the paper's is 0.
    progress: called with the number of edges done.

  Returns:
    `[nnz]` bool, in the order of `edges.indices`. Memory beside it is 16,384 vectors a core.
  """
  kept, ends = np.empty(edges.nnz, bool), edges.indptr[1:]

  def score(start: int) -> int:
    places = np.arange(start, min(start + _CHUNK, edges.nnz))
    owners = np.searchsorted(ends, places, side="right")
    kept[places] = np.einsum("ed,ed->e", rows[owners], anchors[edges.indices[places]]) > threshold
    return int(places[-1]) + 1

  with concurrent.futures.ThreadPoolExecutor() as threads:
    for done in threads.map(score, range(0, edges.nnz, _CHUNK)):
      if progress:
        progress(done)
  return kept
