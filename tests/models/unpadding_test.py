"""Encoders without padding: what comes out, and every gradient, is what the padded encoder gives."""

import functools
import types
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from encoder_references import random_params, value_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st

from xmc_jax import models
from xmc_jax.models import hardware
from xmc_jax.models.encoder import Encoder, EncoderSpec
from xmc_jax.models.unpadding import find_places
from xmc_jax.types import Tokens

KEY = jax.random.key(0)
ENCODER = types.SimpleNamespace(
  name="sentence-transformers/all-MiniLM-L6-v2", num_layers=1, pretrained=False, dtype="float32"
)
SPEC = EncoderSpec("bert", 97, 16, 2, 2, 32, 40, num_types=2)


# Each number of places is a program of its own: a few are enough, with none and several to spare.
@given(
  lengths=st.one_of(
    st.lists(st.integers(0, 7), min_size=6, max_size=6),
    st.sampled_from([[0], [7], [0] * 6, [7] * 6, [1, 2, 3, 4, 5, 6], [7, 0, 7, 0, 7, 0]]),
  ),
)
def test_packing_keeps_what_is_real_and_unpacking_brings_it_back(lengths):
  mask = np.arange(8) < np.array(lengths)[:, None]
  tokens = np.random.default_rng(0).normal(size=(*mask.shape, 3)).astype(np.float32)
  found = find_places(jnp.asarray(mask), max(1, 21 * -(-mask.sum() // 21)))
  packed = np.asarray(found.pack(jnp.asarray(tokens)))
  np.testing.assert_array_equal(packed[: mask.sum()], tokens[mask])
  np.testing.assert_array_equal(packed[mask.sum() :], 0)
  np.testing.assert_array_equal(found.unpack(packed), np.where(mask[..., None], tokens, 0))


def test_the_gradient_of_packing_is_unpacking_and_the_other_way_round():
  mask = np.array([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0]], bool)  # any mask, not only ends of rows
  found, rng = find_places(jnp.asarray(mask), 7), np.random.default_rng(0)
  x, y = rng.normal(size=(3, 4, 2)).astype(np.float32), rng.normal(size=(7, 2)).astype(np.float32)
  np.testing.assert_array_equal(jax.grad(lambda x: jnp.vdot(found.pack(x), y))(x), found.unpack(y))
  np.testing.assert_array_equal(jax.grad(lambda y: jnp.vdot(found.unpack(y), x))(y), found.pack(x))


OPTIONS = [{"remat": True}, {"first_only": True}, {"num_frozen_layers": 1}]


@pytest.mark.parametrize("spare", [0, 9])
@pytest.mark.parametrize("options", [{}, *(pytest.param(one, marks=pytest.mark.slow) for one in OPTIONS)])
def test_the_encoder_gives_the_same_with_and_without_padding(options, spare):
  rng, encoder = np.random.default_rng(1), Encoder(SPEC, **options)
  ids, lengths = rng.integers(0, 97, (6, 12)), np.array([12, 3, 1, 7, 12, 2])
  mask = jnp.arange(12) < lengths[:, None]
  inputs = encoder, random_params(SPEC), ids, mask
  found, gradients = value_and_gradients(*inputs, num_places=int(lengths.sum()) + spare)
  wanted, expected = value_and_gradients(*inputs)
  np.testing.assert_allclose(found, wanted, rtol=1e-5)
  # A key's bias moves every score of a query alike: its gradient is rounding, on both sides.
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5), gradients, expected)


@functools.cache
def _embedder(pooling):
  embedder = models.build(types.SimpleNamespace(**vars(ENCODER), pooling=pooling))
  return embedder, jax.jit(embedder.embed), embedder.init(KEY)


@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(0, 12), min_size=5, max_size=5), pooling=st.sampled_from(["mean", "cls"]))
def test_rows_without_a_token_are_finite_and_change_no_other(lengths, pooling):
  _, embed, params = _embedder(pooling)
  lengths = np.array(lengths, np.int32)
  ids = np.random.default_rng(2).integers(0, 97, (5, 12)).astype(np.int32)
  tokens = Tokens(ids, lengths, 30 if lengths.sum() <= 30 else 60)  # two programs, not sixty
  found, wanted = embed(params, tokens), embed(params, replace(tokens, num_real_tokens=None))
  assert np.isfinite(found).all()
  np.testing.assert_allclose(found[lengths > 0], wanted[lengths > 0], rtol=1e-4, atol=1e-5)


def test_padding_costs_no_products_where_real_tokens_are_counted():
  embedder, _, params = _embedder("mean")

  def flops(num_real_tokens):
    tokens = Tokens(np.zeros((64, 32), np.int32), np.full(64, 8, np.int32), num_real_tokens)
    return jax.jit(embedder.embed).lower(params, tokens).compile().cost_analysis()["flops"]

  assert hardware.packing_pays()
  assert flops(64 * 8) < 0.6 * flops(None)
