"""From hidden states to one vector a text: pooling, projection, dropout, unit length.

docs/formulas.md, "Encoder".
"""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike

from xmc_jax.models.layers import Dense, dropout
from xmc_jax.types import Array


def mean_pool(hidden: Array, mask: Array) -> Array:
  """Mean over real positions: `[n, T, D]`, `[n, T]` bool -> `[n, D]` float32; zero where a row has none."""
  weights = mask.astype(jnp.float32)
  total = jnp.einsum("ntd,nt->nd", hidden.astype(jnp.float32), weights)
  return total / jnp.maximum(weights.sum(axis=1, keepdims=True), 1)


def normalize(vectors: Array, epsilon: float = 1e-12) -> Array:
  """`[..., D]` to unit length. The zero vector stays zero, with a zero gradient instead of NaN."""
  squares = jnp.square(vectors).sum(axis=-1, keepdims=True)
  nonzero = squares > epsilon**2
  # Both branches of a `where` are differentiated: the root must never see the zero itself.
  return jnp.where(nonzero, vectors / jnp.sqrt(jnp.where(nonzero, squares, 1)), 0)


class Head(nn.Module):
  """Pooled vectors `[n, D]` -> embeddings `[n, D']` float32.

  Attributes:
    projection_dim: D' of a dense layer; 0 for none.
    tanh: after that layer (UniDEC's head for the dual encoder has it).
    dropout: rate on the embedding, which is where DEXML applies it.
    unit: scale each embedding to length 1, last of all.
  """

  projection_dim: int = 0
  tanh: bool = False
  dropout: float = 0.0
  unit: bool = False
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, pooled: Array, key: Array | None = None) -> Array:
    x = pooled
    if self.projection_dim:
      x = Dense(self.projection_dim, self.dtype, name="projection")(x).astype(jnp.float32)
    x = dropout(jnp.tanh(x) if self.tanh else x, self.dropout, key)
    return normalize(x) if self.unit else x
