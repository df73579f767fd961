"""The layers' own arithmetic, against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr

from xmc_jax.models.layers import gelu, layer_norm

POINTS = np.concatenate([np.linspace(-14, 14, 4001), [-1e4, -40.0, -0.0, 40.0, 1e4]])


def _slope(x):
  return ndtr(x) + x * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


def test_gelu_and_its_gradients_are_those_of_float64():
  """Of x + bias; the bias's gradient is the sum over rows."""
  x, bias = POINTS.astype(np.float32)[None], np.full(POINTS.shape, 0.25, np.float32)
  found, pullback = jax.vjp(jax.jit(gelu), jnp.asarray(np.repeat(x, 3, axis=0)), jnp.asarray(bias))
  exact = (x + bias)[0].astype(np.float64)
  np.testing.assert_allclose(found[1], exact * ndtr(exact), rtol=3e-7, atol=1e-6)
  d_x, d_bias = pullback(jnp.full(found.shape, 2.0))
  np.testing.assert_allclose(d_x[2], 2 * _slope(exact), rtol=3e-7, atol=1e-6)
  np.testing.assert_allclose(d_bias, 6 * _slope(exact), rtol=5e-7, atol=5e-6)


def test_gelu_keeps_bfloat16_and_rounds_once():
  x = jnp.asarray(POINTS[:-5:7], jnp.bfloat16)
  found, pullback = jax.vjp(gelu, x, jnp.zeros(x.shape))
  exact = np.asarray(x, np.float64)
  assert found.dtype == jnp.bfloat16
  np.testing.assert_allclose(np.asarray(found, np.float64), exact * ndtr(exact), rtol=2**-8, atol=1e-6)
  slope, of_bias = pullback(jnp.ones_like(x))
  assert slope.dtype == jnp.bfloat16 and of_bias.dtype == jnp.float32
  np.testing.assert_allclose(np.asarray(slope, np.float64), _slope(exact), rtol=2**-8, atol=1e-6)


def test_a_layer_norm_and_its_gradients_are_those_of_float64():
  """By central differences of the formula in float64; rows of large mean, and of one value alone."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(5, 7, 16)) * rng.uniform(0.1, 10, (5, 7, 1)) + rng.normal(size=(5, 7, 1)) * 3
  scale, bias, weights = rng.normal(size=16) + 1, rng.normal(size=16), rng.normal(size=x.shape)

  def formula(x, scale, bias):
    centred = x - x.mean(-1, keepdims=True)
    return np.sum(weights * (centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * scale + bias))

  given = [jnp.asarray(array, jnp.float32) for array in (x, scale, bias)]
  total = lambda *given: jnp.sum(weights * layer_norm(*given, 1e-12, jnp.float32))
  value, slopes = jax.jit(jax.value_and_grad(total, (0, 1, 2)))(*given)
  assert float(value) == pytest.approx(formula(x, scale, bias), rel=1e-5)
  for place, found in enumerate(slopes):
    step, values = 1e-6 * rng.normal(size=found.shape), []
    for sign in (1, -1):
      values.append(
        formula(*(array + sign * step * (of == place) for of, array in enumerate((x, scale, bias))))
      )
    assert float(np.sum(found * step)) == pytest.approx((values[0] - values[1]) / 2, rel=1e-4)
  same = jax.grad(lambda x: jnp.sum(layer_norm(x, given[1], given[2], 1e-12, jnp.float32)))(jnp.ones((2, 16)))
  assert np.isfinite(same).all()


@pytest.mark.parametrize("width", [64, 512])
def test_gelu_keeps_its_input_alone_for_the_backward_pass(width):
  x = jnp.ones((256, width))

  def loss(x, kernels):
    for kernel in kernels:
      x = gelu(x @ kernel, jnp.zeros(width))
    return jnp.sum(x)

  kernels = [jnp.eye(width)] * 6
  memory = jax.jit(jax.grad(loss, 1)).lower(x, kernels).compile().memory_analysis().temp_size_in_bytes
  # Input and output of six of them, and what the backward pass works on; plain autodiff keeps 17 to 22.
  assert memory < 13 * x.nbytes
