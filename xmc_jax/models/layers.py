"""Implements the layers of every encoder here: dense, layer norm, GELU, dropout.

All parameters are float32. In bfloat16 mode a product takes bfloat16 inputs and accumulates in
float32, forward and backward. Both matter on a CPU with AMX: XLA reaches about 1.4 TFLOP/s on two cores
with (bf16, bf16) -> f32 and a fifth of that with any other combination, f32 included.
"""

import math
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from xmc_jax.models import hardware
from xmc_jax.types import Array

KERNEL_INIT = nn.initializers.normal(stddev=0.02)  # BERT's `initializer_range`


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(x: Array, kernel: Array, dtype: DTypeLike) -> Array:
  """Multiplies `x @ kernel` with inputs rounded to `dtype` and sums in float32.

  Plain autodiff would multiply a float32 cotangent by a bfloat16 operand; here the cotangent is rounded
  too, so that the two products of the backward pass are as fast as the forward one.

  Args:
    x: `[..., K]`.
    kernel: `[K, N]` float32.
    dtype: the type to which both are rounded; static.

  Returns:
    `[..., N]` float32.
  """
  return _contract(x.astype(dtype), kernel.astype(dtype), x.ndim - 1, 0)


def _contract(a, b, axis_a, axis_b):
  """Contracts one axis of each of two matrices (`a` may have leading axes) into float32."""
  if a.dtype == jnp.bfloat16 and not hardware.multiplies_bfloat16():
    a, b = a.astype(jnp.float32), b.astype(jnp.float32)  # the same products and sums, without emulation
  product = jax.lax.dot_general(a, b, (((axis_a,), (axis_b,)), ((), ())), preferred_element_type=jnp.float32)
  return _row_major(product) if _pins_layouts(a) else product


def _pins_layouts(x):
  return x.dtype == jnp.bfloat16 and jax.default_backend() == "cpu"


def _row_major(x):
  """Pins an array to row-major memory layout.

  XLA's layout pass would turn a transpose next to a product into another layout of its operand or result.
  For (bf16, bf16) -> f32 on a CPU, such an operand makes the product seven times slower, and such a result
  is not implemented at all (jax 0.10.2).
  """
  from jax.experimental.layout import Layout, with_layout_constraint  # experimental: only where it is needed

  return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def _matmul_forward(x, kernel, dtype):
  rounded = x.astype(dtype)
  # An empty array carries the input's dtype: residuals must be arrays.
  return matmul(rounded, kernel, dtype), (rounded, kernel, jnp.empty((0,), x.dtype))


def _matmul_backward(dtype, residuals, cotangent):
  x, kernel, like = residuals
  cotangent = cotangent.astype(dtype)
  d_x = _contract(cotangent, kernel.astype(dtype), cotangent.ndim - 1, 1)
  rows, columns = x.reshape(-1, x.shape[-1]), cotangent.reshape(-1, cotangent.shape[-1])
  if _pins_layouts(rows) and hardware.multiplies_bfloat16():
    d_kernel = _contract(_row_major(rows.T), columns, 1, 0)
  else:
    d_kernel = _contract(rows, columns, 0, 0)
  return d_x.astype(like.dtype), d_kernel.astype(kernel.dtype)


matmul.defvjp(_matmul_forward, _matmul_backward)


class Dense(nn.Module):
  """Computes `x @ kernel + bias`: `[..., K] -> [..., features]`, products in `dtype`, sums in float32."""

  features: int
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: Array) -> Array:
    kernel = self.param("kernel", KERNEL_INIT, (x.shape[-1], self.features))
    bias = self.param("bias", nn.initializers.zeros, (self.features,))
    return (matmul(x, kernel, self.dtype) + bias).astype(self.dtype)


class LayerNorm(nn.Module):
  """Normalises the last axis in float32 and returns `dtype`."""

  epsilon: float
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: Array) -> Array:
    scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
    bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
    x = x.astype(jnp.float32)
    centred = x - x.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    return (centred * jax.lax.rsqrt(variance + self.epsilon) * scale + bias).astype(self.dtype)


@jax.custom_vjp
def gelu(x: Array) -> Array:
  """Computes x Φ(x) in float32, Φ the normal CDF (Hendrycks and Gimpel, 2016); returns x's dtype.

  The backward pass computes Φ again from x. Plain autodiff would store Φ and its parts, which takes more
  time to write and read, and three times the memory.
  """
  return _gelu_forward(x)[0]


def _gelu_forward(x):
  wide = x.astype(jnp.float32)
  return (wide * _normal_cdf(wide)).astype(x.dtype), x


def _gelu_backward(x, cotangent):
  # Without the barrier XLA would see that Φ of the same x was computed before, and store it.
  wide = jax.lax.optimization_barrier(x).astype(jnp.float32)
  density = jnp.exp(-0.5 * wide**2) * (2 * math.pi) ** -0.5
  slope = _normal_cdf(wide) + wide * density
  return ((slope * cotangent.astype(jnp.float32)).astype(x.dtype),)


def _normal_cdf(x):
  return 0.5 + 0.5 * jax.lax.erf(x * 0.5**0.5)


gelu.defvjp(_gelu_forward, _gelu_backward)


def dropout(x: Array, rate: float, key: Array | None) -> Array:
  """Zeroes entries of `x` with probability `rate` and scales the rest by 1/(1-rate).

  Sixteen random bits decide each entry, so the rate is exact to 1e-5.

  Args:
    x: any shape.
    rate: a Python float in [0, 1).
    key: a PRNG key, or None to switch dropout off.
  """
  if key is None or rate == 0:
    return x
  threshold = min(round(rate * 2**16), 2**16 - 1)
  kept = jax.random.bits(key, x.shape, jnp.uint16) >= threshold
  return jnp.where(kept, x * (1 / (1 - threshold / 2**16)), 0).astype(x.dtype)
