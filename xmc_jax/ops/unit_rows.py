"""Scales vectors on the host to length 1, and leaves out those that are not finite."""

import numpy as np


def unit_rows(vectors: np.ndarray, *, in_place: bool = False) -> np.ndarray:
  """Scales rows `[n, D]` to length 1, as float32; zero rows stay zero."""
  out = vectors if in_place else np.array(vectors, np.float32)
  out /= np.maximum(np.sqrt(np.einsum("nd,nd->n", out, out)), 1e-12)[:, None]
  return out


def finite(vectors: np.ndarray) -> np.ndarray:
  """Returns the vectors, with zeros in place of every vector that is not finite."""
  with np.errstate(invalid="ignore"):
    usable = np.isfinite(vectors.sum(axis=1, dtype=np.float64))
  return vectors if usable.all() else np.where(usable[:, None], vectors, np.zeros((), vectors.dtype))
