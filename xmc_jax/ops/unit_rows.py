"""Scales vectors on the host to length 1."""

import numpy as np


def unit_rows(vectors: np.ndarray, *, in_place: bool = False) -> np.ndarray:
  """Scales rows `[n, D]` to length 1, as float32; zero rows stay zero."""
  out = vectors if in_place else np.array(vectors, np.float32)
  out /= np.maximum(np.sqrt(np.einsum("nd,nd->n", out, out)), 1e-12)[:, None]
  return out
