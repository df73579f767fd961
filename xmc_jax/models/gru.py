"""Encodes a text by a bidirectional GRU, as the mean of its states. Cho et al. 2014; DEXA's Table 5.

The gates are those of Flax's `nn.GRUCell` and of PyTorch's `nn.GRU`, `*` being entrywise:

  r = sigmoid(x W_r + b_r + h U_r)            x: token embedding, h: state so far
  z = sigmoid(x W_z + b_z + h U_z)
  c = tanh(x W_c + b_c + r * (h U_c + d_c))
  h = (1 - z) * c + z * h

A kernel holds the three gates side by side: W is `[E, 3H]`, U is `[H, 3H]`. The bias of U is only d_c.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from xmc_jax.models.layers import KERNEL_INIT, dropout, matmul
from xmc_jax.types import Array

DIRECTIONS = ("forward", "backward")


@dataclasses.dataclass(frozen=True)
class GruSpec:
  """Holds the sizes of a bidirectional GRU."""

  vocab_size: int  # V, rows of the token table
  embedding_width: int  # E, its columns
  width: int  # D = 2H, even; H of each direction


def _three_orthogonal(key, shape, dtype=jnp.float32):
  """Draws `[H, 3H]`: an orthogonal matrix for each gate."""
  init, size = nn.initializers.orthogonal(), shape[0]
  gates = jax.vmap(lambda part: init(part, (size, size), dtype))(jax.random.split(key, 3))
  return jnp.concatenate([*gates], axis=1)


class Weights(nn.Module):
  """Holds the kernel and the bias of a product, and returns them without computing the product."""

  kernel_init: nn.initializers.Initializer
  kernel_shape: tuple[int, int]
  bias_size: int

  @nn.compact
  def __call__(self) -> tuple[Array, Array]:
    bias = self.param("bias", nn.initializers.zeros, (self.bias_size,))
    return self.param("kernel", self.kernel_init, self.kernel_shape), bias


class Gru(nn.Module):
  """Computes the mean over a text's tokens of the states of both directions."""

  spec: GruSpec
  dtype: DTypeLike = jnp.float32  # of the products; parameters, gates and states are float32
  dropout: float = 0.0  # rate on the token embeddings while training
  remat: bool = False  # recompute the gates in the backward pass

  @nn.compact
  def __call__(self, ids: Array, mask: Array, key: Array | None = None) -> Array:
    """Maps `ids` `[n, T]` int32, `mask` `[n, T]` bool, any mask, to `[n, D]` float32, forward states first.

    A masked position does not change the state. So the backward direction starts at the last real token, and
    a row without tokens is zero.
    """
    spec, size = self.spec, self.spec.width // 2
    table = self.param("word", KERNEL_INIT, (spec.vocab_size, spec.embedding_width))
    to_gates, from_state = (spec.embedding_width, 3 * size), (size, 3 * size)
    lecun = nn.initializers.lecun_normal()
    inputs = [Weights(lecun, to_gates, 3 * size, name=f"{name}_input")() for name in DIRECTIONS]
    states = [Weights(_three_orthogonal, from_state, size, name=f"{name}_state")() for name in DIRECTIONS]
    # Time first; one product for all steps and both directions.
    embedded = dropout(table[ids.T], self.dropout, key)
    kernel, bias = (jnp.concatenate(parts, axis=-1) for parts in zip(*inputs))
    projected = (matmul(embedded, kernel, self.dtype) + bias).astype(self.dtype)
    kernels, biases = (jnp.stack(parts) for parts in zip(*states))
    total = self._sum_of_states(projected, mask.T, kernels, biases[:, None])
    count = jnp.maximum(mask.sum(axis=1, keepdims=True), 1)
    return jnp.concatenate([*total], axis=-1) / count

  def _sum_of_states(self, projected, mask, kernels, biases):
    """Sums the states `[2, n, H]` in one scan over time; the backward direction starts at the last position.

    `projected` `[T, n, 6H]` is x W + b: the forward direction's three gates, then the backward one's. `mask`
    is `[T, n]`; `kernels` `[2, H, 3H]` are U, `biases` `[2, 1, H]` d_c.
    """
    forward, backward = jnp.split(projected, 2, axis=-1)
    both = jnp.stack([forward, backward[::-1]], axis=1)
    real = jnp.stack([mask, mask[::-1]], axis=1)[..., None]
    product = jax.vmap(lambda state, kernel: matmul(state, kernel, self.dtype))

    def step(carry, now):
      state, total = carry
      x, here = now
      x_r, x_z, x_c = jnp.split(x.astype(jnp.float32), 3, axis=-1)
      u_r, u_z, u_c = jnp.split(product(state, kernels), 3, axis=-1)
      reset, update = nn.sigmoid(x_r + u_r), nn.sigmoid(x_z + u_z)
      candidate = jnp.tanh(x_c + reset * (u_c + biases))
      state = jnp.where(here, candidate + update * (state - candidate), state)
      return (state, total + jnp.where(here, state, 0)), None

    # XLA does not undo the recomputation across steps of a loop, so prevent_cse is not needed.
    step = jax.checkpoint(step, prevent_cse=False) if self.remat else step
    zero = jnp.zeros((2, mask.shape[1], self.spec.width // 2))
    return jax.lax.scan(step, (zero, zero), (both, real))[0][1]
