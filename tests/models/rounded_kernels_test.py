"""Kernels that are rounded once a step: the same values and gradients, and no rounding in a chunk."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_runs
from jax.extend.core import jaxprs_in_params

from xmc_jax import models
from xmc_jax.methods.components import embedding
from xmc_jax.models import hardware
from xmc_jax.models.layers import ROUNDED
from xmc_jax.types import Tokens

KEY = jax.random.key(5)


@pytest.fixture
def as_an_accelerator(monkeypatch):
  """Products are written in bfloat16."""
  monkeypatch.setattr(hardware, "product_dtype", lambda dtype: dtype)


def _embedder(folder, dtype):
  config = types.SimpleNamespace(
    name=str(tiny_runs.tiny_bert(folder, vocab_size=90)), dtype=dtype, dropout=0.1, projection_dim=12
  )
  return config, models.build(config, vocab_size=90)


def _groups():
  ids = np.random.default_rng(0).integers(0, 90, (12, 8)).astype(np.int32)
  return (Tokens(ids, np.full(12, 8, np.int32)),)


def test_values_and_gradients_are_the_same(as_an_accelerator, tmp_path):
  config, embedder = _embedder(tmp_path, "bfloat16")
  params = embedder.init(KEY)
  (tokens,) = _groups()

  def loss(params, rounds):
    params = models.with_rounded_kernels(config, params) if rounds else params
    return jnp.sum(jnp.cumsum(embedder.embed(params, tokens, KEY), axis=0) ** 2)

  (value, gradients), (expected, expected_gradients) = (
    jax.jit(jax.value_and_grad(loss), static_argnums=1)(params, rounds) for rounds in (True, False)
  )
  assert value == expected
  jax.tree.map(np.testing.assert_array_equal, gradients, expected_gradients)
  assert {leaf.dtype for leaf in jax.tree.leaves(gradients)} == {jnp.dtype(jnp.float32)}


def _roundings(jaxpr, in_a_loop=False):
  """Yields `(shape, whether in a loop)` of each matrix that is rounded to bfloat16."""
  for equation in jaxpr.eqns:
    of = [variable.aval for variable in (*equation.invars, *equation.outvars)]
    rounds = equation.primitive.name == "convert_element_type" and of[0].ndim == 2
    if rounds and (of[0].dtype, of[1].dtype) == (jnp.float32, jnp.bfloat16):
      yield of[0].shape, in_a_loop
    for inner in jaxprs_in_params(equation.params):
      yield from _roundings(inner, in_a_loop or equation.primitive.name in ("scan", "while"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_no_chunk_rounds_a_kernel(as_an_accelerator, dtype, tmp_path):
  encoder, embedder = _embedder(tmp_path, dtype)
  method = types.SimpleNamespace(query_chunk=4, label_chunk=4, uncached_tokens=0, dropout_on_labels=True)
  config = types.SimpleNamespace(encoder=encoder, method=method)
  sides = embedding.embedders(config, types.SimpleNamespace(mesh=None))
  params = embedder.init(KEY)
  kernels = [leaf for leaf in jax.tree.leaves(params["encoder"]) if np.ndim(leaf) == 2]
  shapes = {np.shape(leaf) for leaf in kernels}
  for embed in sides:
    total = lambda params, embed=embed: embed(embedder.embed, params, _groups(), KEY).sum()
    jaxpr = jax.make_jaxpr(jax.grad(total))(params)
    found = [(shape, in_a_loop) for shape, in_a_loop in _roundings(jaxpr.jaxpr) if shape in shapes]
    assert not any(in_a_loop for _, in_a_loop in found)
    assert bool(found) == (dtype == "bfloat16")


def test_a_cpu_rounds_nothing(tmp_path):
  config, embedder = _embedder(tmp_path, "bfloat16")
  params = embedder.init(KEY)
  assert ROUNDED not in models.with_rounded_kernels(config, params)
