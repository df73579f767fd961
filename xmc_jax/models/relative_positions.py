"""Computes MPNet's bias of attention scores by the distance between tokens, as T5's (Raffel et al. 2020)."""

import math

import jax.numpy as jnp
import numpy as np

from xmc_jax.types import Array

_FARTHEST = 128  # this and larger distances share a bucket


def relative_bias(table: Array | None, queries: Array, num_tokens: int) -> Array | None:
  """Looks up the bias from query positions `[1 or n, S]` to T keys in `[buckets, H]`: `[1 or n, H, S, T]`."""
  if table is None:
    return None
  distances = jnp.clip(jnp.arange(num_tokens) - queries[..., None], -_FARTHEST, _FARTHEST)
  buckets = jnp.asarray(distance_buckets(len(table)))[distances + _FARTHEST]
  return jnp.moveaxis(jnp.asarray(table)[buckets], -1, 1)


def distance_buckets(num_buckets: int) -> np.ndarray:
  """Returns the bucket of each distance −128 … 128 from query to key: `[257]`.

  Half of the buckets are for keys after the query. In each half, the first ones hold one distance each, and
  the widths of the others grow by a constant factor.
  """
  distances = np.arange(-_FARTHEST, _FARTHEST + 1)
  size = np.abs(distances).astype(np.float32)
  half = num_buckets // 2
  exact = half // 2
  growth = np.log(np.maximum(size, 1) / np.float32(exact)) / np.float32(math.log(_FARTHEST / exact))
  large = np.minimum(exact + (growth * (half - exact)).astype(np.int32), half - 1)
  return half * (distances > 0) + np.where(size < exact, size.astype(np.int32), large)
