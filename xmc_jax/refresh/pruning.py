"""Edges of a metadata graph that an encoder believes in (RAMEN; METHODS, section 6)."""

import numpy as np

_CHUNK = 1 << 16  # edges at a time


def kept_edges(edges, rows: np.ndarray, anchors: np.ndarray, *, threshold: float = 0.0) -> np.ndarray:
  """Which edges stay: those whose two ends are of a cosine above the threshold.

  Args:
    edges: CSR `[N, A]`, points or labels by anchors.
    rows: `[N, D]` embeddings of the former, of length 1.
    anchors: `[A, D]` of the latter, likewise.
    threshold: the paper's is 0.

  Returns:
    `[nnz]` bool, in the order of `edges.indices`. Memory beside it is O(D).
  """
  kept, ends = np.empty(edges.nnz, bool), edges.indptr[1:]
  for start in range(0, edges.nnz, _CHUNK):
    places = np.arange(start, min(start + _CHUNK, edges.nnz))
    owners = np.searchsorted(ends, places, side="right")
    kept[places] = np.einsum("ed,ed->e", rows[owners], anchors[edges.indices[places]]) > threshold
  return kept
