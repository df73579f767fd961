"""The gradient cache changes memory, and nothing else: values and gradients are those without it."""

import functools
import types
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_runs

from xmc_jax import models
from xmc_jax.distributed import sharding
from xmc_jax.ops.grad_cache import Sample, embed_parts
from xmc_jax.types import Tokens

KEY = jax.random.key(11)


def _group(num_rows, width, seed):
  rng = np.random.default_rng(seed)
  lengths = rng.integers(0, width + 1, num_rows).astype(np.int32)
  return Tokens(rng.integers(0, 90, (num_rows, width)).astype(np.int32), lengths)


CHUNK = 4
GROUPS = (_group(7, 8, 0), _group(4, 16, 1))  # two chunks with a row of padding, and one group that is whole


@pytest.fixture(scope="module", params=["bag", pytest.param("bert", marks=pytest.mark.slow)])
def embedder(request, tmp_path_factory):
  name = request.param
  if name == "bert":
    name = str(tiny_runs.tiny_bert(tmp_path_factory.mktemp("bert"), vocab_size=90))
  config = types.SimpleNamespace(
    name=name, width=16, dtype="float32", dropout=0.3, embedding_dropout=0.2, projection_dim=12
  )
  config.attention_dropout = 0.3 * (request.param == "bert")
  return models.build(config, vocab_size=90)


def embed_groups(embed, params, groups, key=None, **options):
  return embed_parts(embed, params, [groups], key, **options)[0]


def _without_cache(embed, params, groups, key):
  """One call a chunk, two for the first group; keys as `embed_parts` promises, for each group and chunk."""
  first, *others = groups
  key, *keys = jax.random.split(key, len(groups))
  num_rows = len(first.lengths)
  padded = jax.tree.map(lambda leaf: np.pad(leaf, [(0, num_rows % 2)] + [(0, 0)] * (leaf.ndim - 1)), first)
  rows = [None] * len(padded.lengths)
  for chunk in range(2):  # the rows are dealt to the chunks in turn
    own = jax.tree.map(lambda leaf, chunk=chunk: leaf[chunk::2], padded)
    rows[chunk::2] = embed(params, own, jax.random.fold_in(key, chunk))
  return jnp.concatenate([jnp.stack(rows[:num_rows]), *map(functools.partial(embed, params), others, keys)])


@pytest.mark.parametrize("shape", [None, pytest.param((2, 4), marks=pytest.mark.slow)])
def test_values_and_gradients_equal_the_uncached_ones(embedder, shape):
  """On a mesh two chunks of one row on each of eight devices."""
  params, groups, placed, options = embedder.init(jax.random.key(0)), GROUPS, GROUPS, {"chunk": CHUNK}
  if shape:
    groups, options = (_group(16, 8, 9),), {"chunk": 1, "devices": sharding.make(*shape)}
    options["axes"] = sharding.LABEL_ROWS
    placed = sharding.split_tree(groups, options["devices"], *sharding.LABEL_ROWS)
  num_rows = sum(len(group.lengths) for group in groups)
  mixing = jax.random.normal(jax.random.key(1), (num_rows, embedder.width))

  def run(embed_all):
    def loss(params):
      vectors = embed_all(params)
      return jnp.sum(jax.nn.logsumexp(5 * vectors @ vectors.T, axis=1)) + jnp.sum(mixing * vectors), vectors

    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    # Two thirds of the time would go into making this one call fast.
    return step.lower(params).compile({"xla_backend_optimization_level": 0})(params)

  (loss, vectors), gradients = run(lambda p: embed_groups(embedder.embed, p, placed, KEY, **options))
  (expected_loss, expected), expected_gradients = run(
    lambda p: _without_cache(embedder.embed, p, groups, KEY)
  )
  assert vectors.shape == mixing.shape
  np.testing.assert_allclose(vectors, expected, atol=1e-5)
  np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
  largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected_gradients))
  for (path, leaf), other in zip(
    jax.tree_util.tree_leaves_with_path(gradients), jax.tree.leaves(expected_gradients), strict=True
  ):
    np.testing.assert_allclose(leaf, other, atol=1e-5 * largest, err_msg=str(path))


def test_texts_outside_the_cache_have_the_same_values_and_gradients():
  """Budgets for nothing, less than a chunk, a part of the narrower texts, all of these, everything."""
  params = {"table": jax.random.normal(jax.random.key(0), (90, 5))}
  groups = (_group(12, 16, 0), _group(20, 8, 1))

  def run(**options):
    called = []

    def embed(params, tokens, key):
      called.append(tokens.ids.shape)
      real = np.arange(tokens.ids.shape[1]) < tokens.lengths[:, None]
      return jnp.sin((params["table"][tokens.ids] * real[..., None]).sum(1))

    loss = lambda params: jnp.sum(jnp.cumsum(embed_groups(embed, params, groups, **options), axis=0) ** 2)
    value, gradients = jax.value_and_grad(loss)(params)
    return value, gradients["table"], set(called)

  value, gradients, whole = run()
  assert whole == {(12, 16), (20, 8)}
  expected = {
    0: {(4, 16), (4, 8)},
    3 * 8: {(4, 16), (4, 8)},
    9 * 8: {(4, 16), (4, 8), (9, 8)},
    20 * 8: {(4, 16), (20, 8)},
    20 * 8 + 5 * 16: {(4, 16), (5, 16), (20, 8)},
    10**6: whole,
  }
  for tokens, shapes in expected.items():
    found, found_gradients, called = run(chunk=4, uncached_tokens=tokens)
    assert called == shapes, tokens
    np.testing.assert_allclose(found, value, rtol=1e-5)
    np.testing.assert_allclose(found_gradients, gradients, rtol=1e-4, atol=1e-4)


def test_every_group_and_chunk_and_what_is_outside_the_cache_has_its_own_dropout():
  """Eight rows of each of two widths; of the narrower four in two chunks, four outside."""
  groups = [Tokens(np.zeros((8, width), np.int32), np.full(8, 4, np.int32)) for width in (4, 8)]
  embed = lambda params, tokens, key: params * jax.random.normal(key, (len(tokens.lengths), 3))
  vectors = np.asarray(embed_groups(embed, jnp.ones(()), groups, KEY, chunk=2, uncached_tokens=4 * 4))
  assert len(np.unique(vectors.round(6), axis=0)) == 16


def test_an_accelerator_encodes_multiples_of_eight_texts(monkeypatch):
  """100 texts in chunks of 16: seven chunks of 16, not of 15; of 43 outside the cache only 40."""
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  called = []

  def embed(params, tokens, key):
    called.append(len(tokens.lengths))
    return params * jnp.ones((len(tokens.lengths), 1))

  for uncached_tokens, expected in ((0, {16}), (43 * 8, {16, 40})):
    called.clear()
    run = functools.partial(embed_groups, embed, chunk=16, uncached_tokens=uncached_tokens)
    assert jax.eval_shape(run, jnp.ones(()), (_group(100, 8, 0),)).shape == (100, 1)
    assert set(called) == expected


def test_parts_go_through_together_and_come_back_apart():
  """Groups of a width are one call of the encoder, whichever part they are of; parts keep their order."""
  embedder = models.build(types.SimpleNamespace(name="bag", width=16, dtype="float32"), vocab_size=90)
  params, calls = jax.tree.map(jnp.asarray, embedder.init(jax.random.key(0))), []

  def embed(params, tokens, key):
    calls.append(tokens.ids.shape)
    return embedder.embed(params, tokens, key)

  parts = [
    (_group(4, 8, 0), _group(2, 24, 1)),
    (_group(2, 8, 2), _group(6, 16, 3), _group(4, 24, 4)),
    (_group(2, 16, 5),),
  ]
  found = embed_parts(embed, params, parts)
  assert sorted(calls) == [(6, 8), (6, 24), (8, 16)]
  for own, groups in zip(found, parts, strict=True):
    np.testing.assert_allclose(
      own, np.concatenate([embedder.embed(params, group) for group in groups]), atol=1e-6
    )


def test_activations_of_one_chunk_are_kept():
  width = 64
  params = {"up": jnp.ones((8, 4096)), "down": jnp.ones((4096, 4))}

  def embed(params, tokens, key):
    return jnp.tanh(tokens.ids @ params["up"]) @ params["down"]

  def memory(chunk):
    groups = (Tokens(ids, ids[..., 0]),)
    loss = lambda params: jnp.sum(embed_groups(embed, params, groups, chunk=chunk) ** 2)
    return jax.jit(jax.grad(loss)).lower(params).compile().memory_analysis().temp_size_in_bytes

  ids = jnp.ones((32 * width, 8))
  # All hidden layers at once are 32 * 64 * 4096 floats = 33 MB, one chunk's 1 MB.
  assert memory(width) < 12e6 < memory(0)


@pytest.mark.slow
@pytest.mark.parametrize(
  "shape, axes", [((2, 1), ("data",)), ((2, 4), ("data",)), ((2, 4), sharding.LABEL_ROWS)]
)
def test_rows_come_back_as_the_devices_hold_them(embedder, shape, axes):
  devices = sharding.make(*shape)
  groups, others = (_group(24, 8, 5), _group(16, 16, 6)), (_group(8, 16, 7),)
  num_shards = int(np.prod([devices.shape[axis] for axis in axes]))
  params = jax.tree.map(jnp.asarray, embedder.init(jax.random.key(0)))
  placed = sharding.split_tree([groups, others], devices, *axes)
  options = {"chunk": 2, "devices": devices, "axes": axes, "uncached_tokens": 2 * 8}
  found, beside = jax.jit(lambda p, g: embed_parts(embedder.embed, p, g, **options))(params, placed)
  plain = [np.asarray(embedder.embed(params, group)) for group in groups]
  expected = np.concatenate([part.reshape(num_shards, -1, part.shape[1]) for part in plain], axis=1)
  np.testing.assert_allclose(found, expected.reshape(-1, embedder.width), atol=1e-5)
  np.testing.assert_allclose(beside, embedder.embed(params, others[0]), atol=1e-5)
  assert found.sharding.shard_shape(found.shape)[0] == 40 // num_shards
  assert beside.sharding.shard_shape(beside.shape)[0] == 8 // num_shards


@pytest.mark.parametrize(
  "num_rows, shape, axes, rows_at_once",
  [
    (96, (1, 1), ("data",), 4),
    (96, (2, 4), ("data",), 2 * 4),
    (96, (2, 4), sharding.LABEL_ROWS, 8 * 4),
    (96, (1, 8), sharding.LABEL_ROWS, 8 * 4),
    (8 * 4, (2, 4), sharding.LABEL_ROWS, 8 * 4),
    (8 * 5, (2, 4), sharding.LABEL_ROWS, 8 * 3),  # three and two, the latter padded
    (8 * 9, (2, 4), sharding.LABEL_ROWS, 8 * 3),
  ],
)
def test_a_chunk_counts_rows_of_one_device(num_rows, shape, axes, rows_at_once):
  """DEXML, section B.5: each device cuts its share of the labels into equal parts, here of up to four."""
  devices, group = sharding.make(*shape), _group(num_rows, 8, 0)
  calls = []

  def embed(params, tokens, key):
    calls.append(tokens.ids.shape)
    return tokens.ids @ params

  placed = sharding.split_tree([group], devices, *axes)
  run = lambda p, g: embed_groups(embed, p, g, chunk=4, devices=devices, axes=axes)
  found = jax.jit(run)(np.ones((8, 3), np.float32), placed)
  assert {*calls} == {(rows_at_once, 8)}
  np.testing.assert_allclose(found, group.ids @ np.ones((8, 3)))


@pytest.mark.parametrize("chunk", [0, 3])
@pytest.mark.parametrize("told", [(True, True), (True, False)])
def test_groups_join_whether_or_not_they_say_how_many_tokens_they_have(embedder, chunk, told):
  params = jax.tree.map(jnp.asarray, embedder.init(jax.random.key(0)))
  parts = [(_group(7, 8, 0),), (_group(5, 8, 1),)]
  saying = [
    (replace(group, num_real_tokens=int(group.lengths.sum()) + 2),) if says else (group,)
    for (group,), says in zip(parts, told)
  ]
  found, wanted = (embed_parts(embedder.embed, params, groups, chunk=chunk) for groups in (saying, parts))
  for own, expected, (group,) in zip(found, wanted, parts, strict=True):
    np.testing.assert_allclose(own[group.lengths > 0], expected[group.lengths > 0], atol=1e-5)


def _gradients(params, groups, wanted, **options):
  """Returns the gradient of Σ wanted · vectors, whose gradient by the vectors is `wanted`."""

  def embed(params, tokens, _):
    return jnp.where(tokens.lengths[:, None] > 0, params[tokens.ids[:, 0]], 0.0)

  return jax.grad(lambda params: jnp.sum(wanted * embed_groups(embed, params, groups, **options)))(params)


@pytest.mark.parametrize("devices", [1, 4])
def test_sampled_gradients_are_right_on_average_and_few(devices):
  """Row l of the parameters has the gradient of text l; a quarter of the texts of each width have one."""
  mesh = sharding.make(devices, 1) if devices > 1 else None
  rng = np.random.default_rng(3)
  ids = np.arange(96, dtype=np.int32)
  groups = [
    Tokens(ids[rows, None].repeat(width, 1), np.ones(len(ids[rows]), np.int32))
    for rows, width in ((slice(64), 8), (slice(64, 96), 16))
  ]
  wanted = rng.standard_t(2, (96, 5)).astype(np.float32)
  params = jnp.zeros((96, 5))
  exact = np.asarray(_gradients(params, groups, wanted, devices=mesh))
  options = {"chunk": CHUNK, "devices": mesh}
  sample = jax.jit(lambda key: _gradients(params, groups, wanted, sample=Sample(0.25, key), **options))
  found = np.stack([sample(key) for key in jax.random.split(KEY, 800)]).astype(np.float64)
  assert ((found != 0).any(axis=2).sum(axis=1) <= 24).all()
  error = found.std(axis=0) / np.sqrt(len(found))
  assert (np.abs(found.mean(axis=0) - exact) <= 5 * error + 1e-5 * np.abs(exact) + 1e-6).all()
  share = (found != 0).any(axis=2).mean(axis=0)
  assert share.max() == 1 and share.min() < 0.2 and (found != 0).any(axis=(0, 2)).all()


def test_a_sample_that_has_every_gradient_is_exact(embedder):
  """Without dropout: three of eleven texts have one, and half are sampled."""
  params = embedder.init(jax.random.key(0))
  wanted = np.zeros((11, embedder.width), np.float32)
  wanted[[1, 5, 8]] = 1.0

  def gradient(**options):
    vectors = lambda params: embed_groups(embedder.embed, params, GROUPS, chunk=2, **options)
    return jax.jit(jax.grad(lambda params: jnp.sum(wanted * vectors(params))))(params)

  exact, sampled = gradient(), gradient(sample=Sample(0.5, KEY))
  close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
  jax.tree.map(close, exact, sampled)
