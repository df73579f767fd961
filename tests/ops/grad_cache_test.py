"""The gradient cache changes memory, and nothing else: values and gradients are those without it."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_runs

from xmc_jax import models
from xmc_jax.contract import Tokens
from xmc_jax.ops.grad_cache import embed_groups

KEY = jax.random.key(11)


def _group(shape, seed):
  rng = np.random.default_rng(seed)
  lengths = rng.integers(0, shape[-1] + 1, shape[:-1]).astype(np.int32)
  return Tokens(rng.integers(0, 90, shape).astype(np.int32), lengths)


GROUPS = (_group((2, 4, 8), 0), _group((5, 16), 1))


@pytest.fixture(scope="module", params=["bag", "bert"])
def embedder(request, tmp_path_factory):
  name = request.param
  if name == "bert":
    name = str(tiny_runs.tiny_bert(tmp_path_factory.mktemp("bert"), vocab_size=90))
  config = types.SimpleNamespace(
    name=name, width=16, dtype="float32", dropout=0.3, embedding_dropout=0.2, projection_dim=12
  )
  return models.build(config, vocab_size=90)


def _without_cache(embed, params, groups, key):
  """One call a chunk, activations kept; keys as `embed_groups` promises: one for each group and chunk."""
  parts = []
  for index, group in enumerate(groups):
    if group.ids.ndim == 2:
      parts.append(embed(params, group, jax.random.fold_in(key, index)))
      continue
    for chunk in range(len(group.ids)):
      own = jax.random.fold_in(jax.random.split(key, len(groups))[index], chunk)
      parts.append(embed(params, jax.tree.map(lambda leaf, chunk=chunk: leaf[chunk], group), own))
  return jnp.concatenate(parts)


def test_values_and_gradients_equal_the_uncached_ones(embedder):
  params = embedder.init(jax.random.key(0))
  mixing = jax.random.normal(jax.random.key(1), (13, embedder.width))

  def run(embed_all):
    def loss(params):
      vectors = embed_all(params)
      return jnp.sum(jax.nn.logsumexp(5 * vectors @ vectors.T, axis=1)) + jnp.sum(mixing * vectors), vectors

    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    # Two thirds of the time would go into making this one call fast.
    return step.lower(params).compile({"xla_backend_optimization_level": 0})(params)

  (loss, vectors), gradients = run(lambda p: embed_groups(embedder.embed, p, GROUPS, KEY))
  (expected_loss, expected), expected_gradients = run(
    lambda p: _without_cache(embedder.embed, p, GROUPS, KEY)
  )
  assert vectors.shape == (2 * 4 + 5, embedder.width)
  np.testing.assert_allclose(vectors, expected, atol=1e-5)
  np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
  largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected_gradients))
  for (path, leaf), other in zip(
    jax.tree_util.tree_leaves_with_path(gradients), jax.tree.leaves(expected_gradients), strict=True
  ):
    np.testing.assert_allclose(leaf, other, atol=1e-5 * largest, err_msg=str(path))


def test_no_key_is_no_dropout(embedder):
  params = jax.tree.map(jnp.asarray, embedder.init(jax.random.key(0)))
  plain = [embedder.embed(params, Tokens(*(leaf.reshape(-1, *leaf.shape[2:]) for leaf in GROUPS[0])))]
  plain.append(embedder.embed(params, GROUPS[1]))
  found = jax.jit(lambda params: embed_groups(embedder.embed, params, GROUPS))(params)
  np.testing.assert_allclose(found, jnp.concatenate(plain), atol=1e-5)


def test_every_group_and_chunk_has_its_own_dropout(embedder):
  params = jax.tree.map(jnp.asarray, embedder.init(jax.random.key(0)))
  same = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), _group((4, 8), 3))
  embed = jax.jit(lambda params: embed_groups(embedder.embed, params, (same, same), KEY).reshape(4, 4, -1))
  vectors = embed(params)
  for one in range(4):
    for other in range(one):
      assert not np.allclose(vectors[one], vectors[other])
  np.testing.assert_array_equal(vectors, embed(params))


def test_activations_of_one_chunk_are_kept():
  width = 64
  params = {"up": jnp.ones((8, 4096)), "down": jnp.ones((4096, 4))}

  def embed(params, tokens, key):
    return jnp.tanh(tokens.ids @ params["up"]) @ params["down"]

  def memory(ids):
    loss = lambda params: jnp.sum(embed_groups(embed, params, (Tokens(ids, ids[..., 0]),)) ** 2)
    return jax.jit(jax.grad(loss)).lower(params).compile().memory_analysis().temp_size_in_bytes

  chunks = jnp.ones((32, width, 8))
  # All hidden layers at once are 32 * 64 * 4096 floats = 33 MB, one chunk's 1 MB.
  assert memory(chunks) < 12e6 < memory(chunks.reshape(-1, 8))
