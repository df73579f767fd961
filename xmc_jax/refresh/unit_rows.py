"""Prepares vectors for clustering: checks them, scales them to length 1, and shuffles them."""

import jax
import jax.numpy as jnp
import numpy as np

from xmc_jax.distributed import runtime
from xmc_jax.models import normalize
from xmc_jax.types import Array


@jax.jit
def unit_rows(vectors: Array, order: Array) -> Array:
  """Returns the vectors `[N, D]` in `order`, as float32 scaled to length 1; zero vectors stay zero."""
  rows = jnp.take(vectors, order, axis=0, mode="clip").astype(jnp.float32)
  largest = jnp.max(jnp.abs(rows), axis=1, keepdims=True, initial=0)
  return normalize(rows / jnp.where(largest > 0, largest, 1))  # squares neither overflow nor underflow


def shuffled(count: int, key: Array) -> np.ndarray:
  """Returns a random permutation `[count]` int32, by NumPy: JAX sorts for this, which takes longer."""
  return np.random.default_rng(np.asarray(jax.random.key_data(key))).permutation(count).astype(np.int32)


def finite_matrix(vectors: Array) -> Array:
  """Checks that vectors are a finite `[N, D]`, and returns them on the device, or on the CPU if it is full.

  Raises:
    ValueError: they are not.
  """
  if np.ndim(vectors) != 2:
    raise ValueError(f"vectors must be [N, D], got the shape {np.shape(vectors)}")
  vectors = jax.device_put(vectors, runtime.device_with_room(2.5 * 4 * np.size(vectors)))
  finite = np.asarray(_finite_rows(vectors))
  if not finite.all():
    first = np.argmin(finite)
    raise ValueError(f"vectors hold NaN or infinity in {np.sum(~finite)} rows, first in row {first}")
  return vectors


@jax.jit
def _finite_rows(vectors: Array) -> Array:
  return jnp.all(jnp.isfinite(vectors), axis=1)
