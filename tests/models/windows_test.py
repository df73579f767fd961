"""Texts longer than an encoder's positions: each window by itself, averaged by hand."""

import functools
import types
from dataclasses import replace

import encoder_references
import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xmc_jax import models
from xmc_jax.types import Tokens

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
WIDTH = 7  # positions of these encoders
LENGTHS = np.array([20, 7, 8, 1, 14, 0, 13], np.int32)  # of windows: 4, 1, 2, 1, 3, 1 (empty), 2
SPECS = {
  "bert": models.EncoderSpec("bert", 97, 16, 2, 2, 24, WIDTH, num_types=2),
  "mpnet": models.EncoderSpec("mpnet", 97, 16, 2, 2, 24, WIDTH, num_buckets=8, first_position=2),
  "modernbert": replace(encoder_references.MODERNBERT, vocab_size=97, max_positions=WIDTH),
}


@pytest.fixture(scope="module")
def build(tmp_path_factory):
  """`build(kind, **options)` -> a small random embedder and its parameters."""

  @functools.cache
  def folder(kind):
    path, params = tmp_path_factory.mktemp(kind), encoder_references.random_params(SPECS[kind])
    models.save_pretrained(flax.traverse_util.flatten_dict(params, sep="/"), SPECS[kind], path)
    return str(path)

  def build(kind="bert", **options):
    settings = {"name": folder(kind), "normalize": False, "dtype": "float32"} | options
    embedder = models.build(types.SimpleNamespace(**settings))
    return embedder, embedder.init(KEY)

  return build


def texts(width=20):
  ids = np.random.default_rng(0).integers(5, 97, (len(LENGTHS), width)).astype(np.int32)
  return Tokens(np.where(np.arange(width) < LENGTHS[:, None], ids, 0), LENGTHS, int(LENGTHS.sum()))


def by_hand(apply, params, text):
  """The weighted mean of a text's windows, each of which is encoded alone."""
  rest, vectors = text[1:], []
  windows = [[text[0], *rest[i : i + WIDTH - 1]] for i in range(0, max(1, len(rest)), WIDTH - 1)]
  for window in windows:
    ids = np.pad(window, (0, WIDTH - len(window)))[None].astype(np.int32)
    vectors.append(apply(params, ids, np.arange(WIDTH)[None] < len(window))[0])
  return np.average(vectors, axis=0, weights=[len(window) for window in windows])


@pytest.mark.parametrize(
  ("kind", "pooling"),
  [("bert", "mean"), ("bert", "max"), ("mpnet", "lasttoken"), ("modernbert", "cls")],
)
def test_a_long_text_is_the_mean_of_its_windows(build, kind, pooling):
  embedder, params = build(kind, pooling=pooling)
  tokens, real, apply = texts(), LENGTHS > 0, jax.jit(embedder.apply)
  expected = np.stack([by_hand(apply, params, ids[:n]) for ids, n in zip(tokens.ids, LENGTHS) if n])
  for counted in (tokens, replace(tokens, num_real_tokens=None)):  # without padding, and with it
    found = np.asarray(jax.jit(embedder.embed)(params, counted))
    np.testing.assert_allclose(found[real], expected, atol=2e-5)
    assert np.isfinite(found).all()
  # The first token on another place, and holes: only the order of real tokens counts.
  spread = np.zeros((len(LENGTHS), 31), np.int32)
  mask = np.zeros(spread.shape, bool)
  for row, n in enumerate(LENGTHS):
    places = np.sort(np.random.default_rng(row).choice(31, n, replace=False))
    spread[row, places], mask[row, places] = tokens.ids[row, :n], True
  np.testing.assert_allclose(apply(params, spread, mask)[real], expected, atol=2e-5)


def test_the_head_follows_the_mean(build):
  plain, _ = build()
  embedder, params = build(projection_dim=5, projection_tanh=True, normalize=True)
  dense = params["projection"]
  pooled = jax.jit(plain.embed)({"encoder": params["encoder"]}, texts())
  expected = np.tanh(pooled @ dense["kernel"] + dense["bias"])
  found = jax.jit(embedder.embed)(params, texts())
  np.testing.assert_allclose(found, models.normalize(expected), atol=1e-5)


def test_padding_changes_nothing_and_short_texts_are_as_without_windows(build):
  embedder, params = build()
  embed, tokens = jax.jit(embedder.embed), texts()
  found = embed(params, tokens)
  wider = replace(tokens, ids=np.pad(tokens.ids, ((0, 0), (0, 13)), constant_values=9))
  np.testing.assert_allclose(embed(params, wider), found, atol=1e-5)
  short = LENGTHS <= WIDTH
  narrow = Tokens(tokens.ids[short, :WIDTH], LENGTHS[short])
  np.testing.assert_allclose(embed(params, narrow), found[short], atol=1e-5)


def test_gradients_are_finite_and_those_of_the_padded_windows(build):
  embedder, params = build(pooling="mean", normalize=True, dropout=0.1)

  @functools.partial(jax.jit, static_argnames="key")
  def gradients(tokens, key=None):
    key = None if key is None else jax.random.key(key)
    return jax.grad(lambda p: jnp.sin(3 * embedder.embed(p, tokens, key)).sum())(params)

  found, expected = gradients(texts()), gradients(replace(texts(), num_real_tokens=None))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=5e-5), found, expected)
  assert np.abs(found["encoder"]["layer_0"]["attention"]["value"]["kernel"]).max() > 1e-3
  for leaf in jax.tree.leaves(gradients(texts(), key=1)):
    assert np.isfinite(leaf).all()


def test_windows_cost_products_only_where_they_are_read(build):
  embedder, params = build()

  def flops(width):
    tokens = Tokens(np.zeros((64, width), np.int32), np.full(64, 6, np.int32))
    return jax.jit(embedder.embed).lower(params, tokens).compile().cost_analysis()["flops"]

  assert 2.5 * flops(WIDTH) < flops(3 * (WIDTH - 1) + 1) < 3.5 * flops(WIDTH)
