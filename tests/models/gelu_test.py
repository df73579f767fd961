"""The layers' own arithmetic, against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr

from xmc_jax.models.layers import gelu

POINTS = np.concatenate([np.linspace(-14, 14, 4001), [-1e4, -40.0, -0.0, 40.0, 1e4]])


def _slope(x):
  return ndtr(x) + x * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


def test_gelu_and_its_gradient_are_those_of_float64():
  x = POINTS.astype(np.float32)
  found, pullback = jax.vjp(jax.jit(gelu), jnp.asarray(x))
  exact = x.astype(np.float64)
  np.testing.assert_allclose(found, exact * ndtr(exact), rtol=3e-7, atol=1e-6)
  np.testing.assert_allclose(pullback(jnp.full(x.shape, 2.0))[0], 2 * _slope(exact), rtol=3e-7, atol=1e-6)


def test_gelu_keeps_bfloat16_and_rounds_once():
  x = jnp.asarray(POINTS[:-5:7], jnp.bfloat16)
  found, pullback = jax.vjp(gelu, x)
  exact = np.asarray(x, np.float64)
  assert found.dtype == jnp.bfloat16
  np.testing.assert_allclose(np.asarray(found, np.float64), exact * ndtr(exact), rtol=2**-8, atol=1e-6)
  slope = np.asarray(pullback(jnp.ones_like(x))[0], np.float64)
  np.testing.assert_allclose(slope, _slope(exact), rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("width", [64, 512])
def test_gelu_keeps_its_input_alone_for_the_backward_pass(width):
  x = jnp.ones((256, width))

  def loss(x, kernels):
    for kernel in kernels:
      x = gelu(x @ kernel)
    return jnp.sum(x)

  kernels = [jnp.eye(width)] * 6
  memory = jax.jit(jax.grad(loss, 1)).lower(x, kernels).compile().memory_analysis().temp_size_in_bytes
  # Input and output of six of them, and what the backward pass works on; plain autodiff keeps 17 to 22.
  assert memory < 13 * x.nbytes
