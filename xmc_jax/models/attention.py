"""Implements multi-head attention: by a fused kernel, by XLA, or with dropout on its weights."""

import contextlib
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from xmc_jax.models import fused_attention, hardware
from xmc_jax.models.layers import Dense, dropout
from xmc_jax.models.unpadding import Places
from xmc_jax.types import Array

_FARTHEST = 128  # tokens; this and larger distances share a bucket


def rotate(heads: Array, positions: Array, theta: float) -> Array:
  """Turns pairs of columns of `[n, S, H, d]` by angles that grow with `positions` `[1 or n, S]`.

  Column j < d/2 is paired with j + d/2; its angle is the position times theta^(-2j/d) (RoPE; Su et al. 2021).
  """
  half = heads.shape[-1] // 2
  angles = positions[:, :, None, None] * np.float32(theta ** (-np.arange(half) / half))
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  x, y = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
  return jnp.concatenate([x * cos - y * sin, y * cos + x * sin], axis=-1).astype(heads.dtype)


def relative_bias(table: Array | None, queries: Array, num_tokens: int) -> Array | None:
  """Looks up the bias from query positions `[1 or n, S]` to T keys in `[buckets, H]`: `[1 or n, H, S, T]`.

  It depends on the distance between tokens, in MPNet as in T5 (Raffel et al. 2020).
  """
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


def attend_with_dropout(
  query: Array,
  key: Array,
  value: Array,
  mask: Array,
  rate: float,
  dropout_key: Array,
  bias: Array | None = None,
) -> Array:
  """Computes scaled dot-product attention, with dropout on its weights after the softmax, head by head.

  Queries and result are `[n, S, H, d]`, keys and values `[n, T, H, d]`, `mask` `[n, 1, S, T]` bool, True = a
  key that is attended to, and `bias`, added to scaled scores, `[1 or n, H, S, T]`. The softmax is float32.
  """
  precision = hardware.precision_of(query.dtype)
  scores = jnp.einsum("nshd,nthd->nhst", query, key, precision=precision, preferred_element_type=jnp.float32)
  scores = scores * query.shape[-1] ** -0.5
  scores = jnp.where(mask, scores if bias is None else scores + bias, jnp.finfo(jnp.float32).min)
  weights = dropout(nn.softmax(scores, axis=-1).astype(value.dtype), rate, dropout_key)
  return jnp.einsum("nhst,nthd->nshd", weights, value, precision=precision)


class Attention(nn.Module):
  """Attends from `queries` `[n, S, D]` to `x` `[n, T, D]`, multi-head, keys masked by `mask` `[n, T]`.

  With `places` (unpadding.py) `x` is `[P, D]`, and so are the queries and the output, unless S is 1.
  `lengths` `[n]` int32 are given where the real keys of each text are its first ones, at least one.
  `bias` `[1 or n, H, S, T]` is added to scaled scores; fused kernels do not compute it.
  With `theta`, queries and keys are rotated by their positions; `window` is the largest distance from a query
  to a key. Queries have `query_positions` `[1 or n, S]`, or, as keys have, 0, 1 and so on.
  With a dropout key and a rate above 0, weights are dropped and `implementation` is ignored: fused
  kernels draw their own dropout masks, which a JAX key cannot reproduce.
  """

  num_heads: int
  dtype: DTypeLike
  implementation: fused_attention.Fused | None
  dropout: float = 0.0
  has_bias: bool = True
  theta: float = 0.0
  window: int | None = None

  @nn.compact
  def __call__(
    self,
    queries: Array,
    x: Array,
    mask: Array,
    places: Places | None = None,
    dropout_key: Array | None = None,
    lengths: Array | None = None,
    bias: Array | None = None,
    query_positions: Array | None = None,
  ) -> Array:
    width = x.shape[-1]

    def heads(name, inputs):
      projected = Dense(width, self.dtype, has_bias=self.has_bias, name=name)(inputs)
      projected = places.unpack(projected) if places and projected.ndim == 2 else projected
      return projected.reshape(*projected.shape[:2], self.num_heads, width // self.num_heads)

    query, key, value = heads("query", queries), heads("key", x), heads("value", x)
    (num_texts, num_tokens), num_queries = mask.shape, query.shape[1]
    mask = jnp.broadcast_to(mask[:, None, None, :], (num_texts, 1, num_queries, num_tokens))
    if query_positions is None:
      query_positions = jnp.arange(num_queries)[None]
    if self.theta:
      query = rotate(query, query_positions, self.theta)
      key = rotate(key, jnp.arange(num_tokens)[None], self.theta)
    if self.window is not None:
      distances = jnp.abs(query_positions[:, None, :, None] - jnp.arange(num_tokens))
      # Padding far from every token attends to itself: a softmax over no key is NaN in some kernels.
      mask = mask & (distances <= self.window) | (distances == 0)
    if dropout_key is not None and self.dropout:
      mixed = attend_with_dropout(query, key, value, mask, self.dropout, dropout_key, bias)
    else:
      # With a single query cuDNN is no faster.
      fused = self.implementation if num_queries == num_tokens and bias is None else None
      if fused == "cudnn_by_lengths" and (lengths is None or self.window is not None):
        fused = "cudnn_by_mask"
      if fused and not fused_attention.is_faster(fused, self.num_heads, query.shape[-1], num_tokens):
        fused = None
      keys = {"key_value_seq_lengths": lengths} if fused == "cudnn_by_lengths" else {"mask": mask}
      exact = self.dtype == jnp.float32
      with jax.default_matmul_precision("highest") if exact else contextlib.nullcontext():
        mixed = jax.nn.dot_product_attention(
          query, key, value, bias, implementation="cudnn" if fused else None, **keys
        )
    mixed = mixed.reshape(num_texts, num_queries, width)
    mixed = places.pack(mixed) if places and queries.ndim == 2 else mixed
    return Dense(width, self.dtype, has_bias=self.has_bias, name="output")(mixed)
