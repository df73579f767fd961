"""Computes label centroids: the mean embeddings of labels' training points."""

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp


def label_centroids(points: np.ndarray, truth: sp.csr_matrix, texts: Callable[[], np.ndarray]) -> np.ndarray:
  """Returns the mean embedding of each label's training points (DEXA, section 6; PRIME, section 3.2).

  Args:
    points: `[N, D]` float32.
    truth: CSR `[N, L]`, true labels; every value above 0 counts as 1.
    texts: `() -> [L, D]`, used for labels without points; not called if every label has one.

  Returns:
    `[L, D]` float32, not normalised.
  """
  has_label = (truth > 0).T.tocsr().astype(np.float32)
  counts = np.diff(has_label.indptr)
  centroids = np.asarray(has_label @ points, np.float32)
  centroids /= np.maximum(counts, 1)[:, None]
  if not counts.all():
    centroids[counts == 0] = texts()[counts == 0]
  return centroids


def normalize_rows(vectors: np.ndarray) -> np.ndarray:
  """Scales rows `[n, D]` to length 1, in place; zero rows stay zero."""
  vectors /= np.maximum(np.sqrt(np.einsum("nd,nd->n", vectors, vectors)), 1e-12)[:, None]
  return vectors
