"""Labels by what their training points look like."""

import numpy as np


def label_centroids(points: np.ndarray, truth, texts: np.ndarray) -> np.ndarray:
  """The mean embedding of each label's training points (DEXA, section 6; PRIME, section 3).

  Args:
    points: `[N, D]` float32.
    truth: CSR `[N, L]`, true labels; what is greater than 0 counts as 1.
    texts: `[L, D]`, taken for labels that have no point.

  Returns:
    `[L, D]` float32, not scaled to any length.
  """
  carries = (truth > 0).T.tocsr().astype(np.float32)
  counts = np.diff(carries.indptr)[:, None]
  return np.where(counts > 0, carries @ points / np.maximum(counts, 1), texts).astype(np.float32)
