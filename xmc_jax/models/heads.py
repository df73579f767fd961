"""Turns hidden states into one vector for each text: pooling, projection, dropout, unit length.

docs/formulas.md, "Encoder".
"""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike

from xmc_jax.models.layers import Dense, dropout
from xmc_jax.types import Array


def mean_pool(hidden: Array, mask: Array) -> Array:
  """Averages `[n, T, D]` over the positions that `[n, T]` marks: `[n, D]` float32; zero if a row has none."""
  weights = mask.astype(jnp.float32)
  total = jnp.einsum("ntd,nt->nd", hidden.astype(jnp.float32), weights, precision="highest")
  return total / jnp.maximum(weights.sum(axis=1, keepdims=True), 1)


def pool(hidden: Array, mask: Array, how: str) -> Array:
  """Joins `[n, T, D]` over the positions that `[n, T]` marks: `[n, D]` float32.

  `how` is 'mean', 'max' of each column, 'cls', the first marked position, or 'lasttoken', the last one. A row
  without a marked position is finite.
  """
  if how == "mean":
    return mean_pool(hidden, mask)
  hidden = hidden.astype(jnp.float32)
  if how == "max":
    largest = jnp.where(mask[..., None], hidden, jnp.finfo(jnp.float32).min).max(axis=1)
    return jnp.where(mask.any(axis=1, keepdims=True), largest, 0)
  position = jnp.arange(mask.shape[1])
  place = jnp.argmax(mask, axis=1) if how == "cls" else jnp.argmax(mask * position, axis=1)
  return jnp.take_along_axis(hidden, place[:, None, None], axis=1)[:, 0]


def normalize(vectors: Array) -> Array:
  """Scales `[..., D]` to unit length. The zero vector stays zero, with a zero gradient instead of NaN."""
  squares = jnp.square(vectors).sum(axis=-1, keepdims=True)
  nonzero = squares > 1e-12**2
  # Both branches of a `where` are differentiated, so the root must never be taken of 0.
  return jnp.where(nonzero, vectors / jnp.sqrt(jnp.where(nonzero, squares, 1)), 0)


class Head(nn.Module):
  """Maps pooled vectors `[n, D]` to embeddings `[n, D']` float32."""

  projection_dim: int = 0  # D' of a dense layer; 0 for none
  tanh: bool = False  # whether a tanh follows that layer (as in UniDEC's head for the dual encoder)
  dropout: float = 0.0  # rate on the embedding, where DEXML applies it too
  unit: bool = False  # whether to scale each embedding to length 1 at the end
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, pooled: Array, key: Array | None = None) -> Array:
    x = pooled
    if self.projection_dim:
      x = Dense(self.projection_dim, self.dtype, name="projection")(x).astype(jnp.float32)
    x = dropout(jnp.tanh(x) if self.tanh else x, self.dropout, key)
    return normalize(x) if self.unit else x
