"""Implements the layers of every encoder here: dense, layer norm, GELU, dropout.

All parameters are float32. In bfloat16 mode a product takes bfloat16 inputs and accumulates in
float32, forward and backward. Both matter on a CPU with AMX: XLA reaches about 1.4 TFLOP/s on two cores
with (bf16, bf16) -> f32 and a fifth of that with any other combination, f32 included. An accelerator rounds
each sum once it is complete, because writing and reading float32 results takes longer than the products.
"""

import math
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from xmc_jax.distributed import platform
from xmc_jax.models import hardware
from xmc_jax.types import Array

KERNEL_INIT = nn.initializers.normal(stddev=0.02)  # BERT's `initializer_range`
ROUNDED = "rounded"  # the collection of kernels that were rounded outside: `embedder.with_rounded_kernels`


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def matmul(
  x: Array, kernel: Array, dtype: DTypeLike, result: DTypeLike = jnp.float32, rounded: Array | None = None
) -> Array:
  """Multiplies `x @ kernel` with inputs rounded to `dtype` and sums in float32.

  Plain autodiff would multiply a float32 cotangent by a bfloat16 operand; here the cotangent is rounded
  too, so that the two products of the backward pass are as fast as the forward one.

  Args:
    x, kernel: `[..., K]` and `[K, N]` float32.
    dtype: the type to which both are rounded; static.
    result: the type of the product `[..., N]`, and of the product that is x's gradient; static.
    rounded: the kernel in `dtype`, if it is at hand; its gradient is the kernel's. None rounds it here.
  """
  return _matmul_forward(x, kernel, dtype, result, rounded)[0]


def _contract(a, b, axis_a, axis_b, result=jnp.float32):
  """Contracts one axis of each of two matrices (`a` may have leading axes); sums are float32."""
  if a.dtype == jnp.bfloat16 and not hardware.multiplies_bfloat16():
    a, b = a.astype(jnp.float32), b.astype(jnp.float32)  # the same products and sums, without emulation
  precision = hardware.precision_of(a.dtype)
  contracted = ((axis_a,), (axis_b,)), ((), ())
  product = jax.lax.dot_general(a, b, contracted, precision=precision, preferred_element_type=result)
  return _row_major(product) if _pins_layouts(a) else product


def _pins_layouts(x):
  return x.dtype == jnp.bfloat16 and platform.name() == "cpu"


def _row_major(x):
  """Pins an array to row-major memory layout.

  XLA's layout pass would turn a transpose next to a product into another layout of its operand or result.
  For (bf16, bf16) -> f32 on a CPU, such an operand makes the product seven times slower, and such a result
  is not implemented at all (jax 0.10.2).
  """
  from jax.experimental.layout import Layout, with_layout_constraint  # experimental: only where it is needed

  return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def _matmul_forward(x, kernel, dtype, result, rounded):
  rounded_x, rounded = x.astype(dtype), kernel.astype(dtype) if rounded is None else rounded
  # Empty arrays carry types of the inputs: residuals must be arrays.
  residuals = rounded_x, rounded, jnp.empty((0,), x.dtype), jnp.empty((0,), kernel.dtype)
  return _contract(rounded_x, rounded, x.ndim - 1, 0, result), residuals


def _matmul_backward(dtype, result, residuals, cotangent):
  x, kernel, like_x, like_kernel = residuals
  cotangent = cotangent.astype(dtype)
  d_x = _contract(cotangent, kernel, cotangent.ndim - 1, 1, result)
  rows, columns = x.reshape(-1, x.shape[-1]), cotangent.reshape(-1, cotangent.shape[-1])
  if _pins_layouts(rows) and hardware.multiplies_bfloat16():
    d_kernel = _contract(_row_major(rows.T), columns, 1, 0)
  else:
    d_kernel = _contract(rows, columns, 0, 0)
  return d_x.astype(like_x.dtype), d_kernel.astype(like_kernel.dtype), None


matmul.defvjp(_matmul_forward, _matmul_backward)


def _fusion_barrier(arrays):
  """Stops XLA from fusing across this point on accelerators; returns the arrays unchanged on a CPU."""
  return arrays if platform.name() == "cpu" else jax.lax.optimization_barrier(arrays)


def _bias(module, size):
  """Returns a layer's bias, or zeros where it has none."""
  if not module.has_bias:
    return jnp.zeros(size, jnp.float32)
  return module.param("bias", nn.initializers.zeros, (size,))


class Dense(nn.Module):
  """Computes `x @ kernel + bias`, or its GELU: `[..., K] -> [..., features]` in `dtype`, sums in float32."""

  features: int
  dtype: DTypeLike = jnp.float32
  gelu: bool = False
  has_bias: bool = True

  @nn.compact
  def __call__(self, x: Array) -> Array:
    kernel = self.param("kernel", KERNEL_INIT, (x.shape[-1], self.features))
    bias = _bias(self, self.features)
    rounded: Array | None = self.get_variable(ROUNDED, "kernel")
    product = matmul(x, kernel, self.dtype, hardware.product_dtype(self.dtype), rounded)
    return gelu(product.astype(self.dtype), bias) if self.gelu else (product + bias).astype(self.dtype)


class LayerNorm(nn.Module):
  """Normalises the last axis in float32 and returns `dtype`."""

  epsilon: float
  dtype: DTypeLike = jnp.float32
  has_bias: bool = True

  @nn.compact
  def __call__(self, x: Array) -> Array:
    scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
    bias = _bias(self, x.shape[-1])
    return layer_norm(x, scale, bias, self.epsilon, self.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def layer_norm(x: Array, scale: Array, bias: Array, epsilon: float, dtype: DTypeLike) -> Array:
  """Computes (x − mean) / sqrt(variance + ε) * scale + bias over the last axis, in float32 (Ba et al., 2016).

  The result is of type `dtype`. The backward pass keeps x in its own type, and each row's mean and deviation.
  Plain autodiff would keep float32 arrays of x's shape.
  """
  return _layer_norm_forward(x, scale, bias, epsilon, dtype)[0]


def _layer_norm_forward(x, scale, bias, epsilon, dtype):
  wide = x.astype(jnp.float32)
  mean = wide.mean(-1, keepdims=True)
  inverse_deviation = jax.lax.rsqrt(jnp.square(wide - mean).mean(-1, keepdims=True) + epsilon)
  normalised = (wide - mean) * inverse_deviation
  return (normalised * scale + bias).astype(dtype), (x, scale, mean, inverse_deviation)


def _layer_norm_backward(epsilon, dtype, residuals, cotangent):
  x, scale, mean, inverse_deviation = residuals

  def in_float32(x, cotangent):
    cotangent = cotangent.astype(jnp.float32)
    return (x.astype(jnp.float32) - mean) * inverse_deviation, cotangent, cotangent * scale

  normalised, _, d_normalised = in_float32(x, cotangent)
  row_means = tuple(
    jnp.mean(product, axis=-1, keepdims=True) for product in (d_normalised, d_normalised * normalised)
  )
  # Without the barrier XLA would write float32 arrays of x's shape for the sums over rows.
  x, cotangent, (mean_d, mean_projection) = _fusion_barrier((x, cotangent, row_means))
  normalised, cotangent, d_normalised = in_float32(x, cotangent)
  d_x = inverse_deviation * (d_normalised - mean_d - normalised * mean_projection)
  rows = tuple(range(x.ndim - 1))
  return d_x.astype(x.dtype), jnp.sum(cotangent * normalised, axis=rows), jnp.sum(cotangent, axis=rows)


layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)


@jax.custom_vjp
def gelu(x: Array, bias: Array) -> Array:
  """Computes y Φ(y) of y = x + bias, Φ the normal CDF (Hendrycks and Gimpel, 2016); returns x's dtype.

  The backward pass computes y and Φ again from x. Plain autodiff would store y, Φ and its parts, which takes
  more time to write and read, and three times the memory.
  """
  return _gelu_forward(x, bias)[0]


def _gelu_forward(x, bias):
  wide = x.astype(jnp.float32) + bias
  return (wide * _normal_cdf(wide)).astype(x.dtype), (x, bias)


def _gelu_backward(residuals, cotangent):
  x, bias = residuals
  # Without the barrier XLA would see that Φ of the same x was computed before, and store it.
  wide = jax.lax.optimization_barrier(x).astype(jnp.float32) + bias
  density = jnp.exp(-0.5 * wide**2) * (2 * math.pi) ** -0.5
  d_x = ((_normal_cdf(wide) + wide * density) * cotangent.astype(jnp.float32)).astype(x.dtype)
  d_x = _fusion_barrier(d_x)  # or XLA would write it in float32, for the sum over rows
  return d_x, jnp.sum(d_x.astype(jnp.float32), axis=tuple(range(x.ndim - 1)))


def _normal_cdf(x):
  return 0.5 + 0.5 * jax.lax.erf(x * 0.5**0.5)


gelu.defvjp(_gelu_forward, _gelu_backward)


def dropout(x: Array, rate: float, key: Array | None) -> Array:
  """Zeroes entries of `x` with probability `rate` and scales the rest by 1/(1-rate); not without a key.

  Sixteen random bits decide each entry, so the rate is exact to 1e-5.
  """
  if key is None or rate == 0:
    return x
  threshold = min(round(rate * 2**16), 2**16 - 1)
  kept = jax.random.bits(key, x.shape, jnp.uint16) >= threshold
  return jnp.where(kept, x * (1 / (1 - threshold / 2**16)), 0).astype(x.dtype)
