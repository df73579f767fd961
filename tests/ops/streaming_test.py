"""Streaming losses: those of the whole score matrix, however the labels are cut."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from streaming_references import KINDS, OPTIONS, Case, draw_columns, make_case, reference, spread_all

from xmc_jax import losses
from xmc_jax.distributed import sharding
from xmc_jax.ops import streaming_loss

LOSSES = {kind: getattr(losses, {"soft_top_k": "soft_top_k_loss"}.get(kind, kind)) for kind in KINDS}
every_kind = pytest.mark.parametrize("kind", KINDS)


@functools.partial(jax.jit, static_argnames=("kind", "chunk", "mesh", "keeps"))
def jitted(kind, case, chunk=8, mesh=None, keeps=False, **options):
  """Row losses, and the gradients of their weighted sum to queries, labels and temperature."""
  keywords = case.options | OPTIONS[kind] | options

  def total(queries, labels, temperature):
    settings = {"chunk": chunk, "temperature": temperature, "mesh": mesh, "keeps_scores": keeps}
    per_row = streaming_loss(kind, queries, labels, case.positives, **settings, **keywords)
    return jnp.sum(case.scale * per_row), per_row

  grads, per_row = jax.grad(total, argnums=(0, 1, 2), has_aux=True)(
    case.queries, case.labels, jnp.asarray(case.temperature, jnp.float32)
  )
  return per_row, *grads


def dense(kind, case):
  """The same from the public losses of the whole matrix."""
  labels, weights, where = spread_all(case)
  keywords = {"where": where} | OPTIONS[kind] | ({} if weights is None else {"weights": weights})
  bias = 0.0 if case.bias is None else case.bias

  def total(queries, table, temperature):
    per_row = LOSSES[kind](queries @ table.T / temperature + bias, labels, **keywords)
    return jnp.sum(case.scale * per_row), per_row

  step = jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True))
  grads, per_row = step(case.queries, case.labels, case.temperature)
  return per_row, *grads


def assert_close(got, expected, tolerance=1e-5):
  for ours, theirs in zip(got, expected):
    theirs = np.asarray(theirs, np.float64)
    assert np.all(np.isfinite(ours))
    size = max(np.abs(theirs).max(initial=0), 1)
    np.testing.assert_allclose(np.asarray(ours, np.float64), theirs, rtol=0, atol=tolerance * size)


@every_kind
@pytest.mark.parametrize("weighted, masked", [(False, False), (True, True)])
def test_equals_the_dense_loss_and_the_definition(kind, weighted, masked):
  case = make_case(kind, weighted=weighted, masked=masked)
  got = jitted(kind, case, 40)
  assert_close(got, dense(kind, case))
  assert_close(got, reference(kind, case))


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("chunk", [1, 300])
def test_chunks_change_nothing(kind, chunk):
  size = (5, 37, 6) if chunk == 1 else (8, 2000, 32)
  case = make_case(kind, size, width=9, masked=True, seed=1, temperature=1.0)
  assert_close(jitted(kind, case, chunk), reference(kind, case))


def test_the_weights_have_a_gradient():
  """The loss is linear in them."""
  case = make_case("decoupled_softmax", weighted=True)
  arguments = case.queries, case.labels, case.positives
  loss = functools.partial(streaming_loss, "decoupled_softmax", *arguments, chunk=40)
  slopes = jax.grad(lambda weights: jnp.sum(loss(weights=weights)))(jnp.ones(case.weights.shape))
  each = [loss(weights=jnp.zeros_like(slopes).at[:, place].set(1.0)) for place in range(slopes.shape[1])]
  np.testing.assert_allclose(slopes, np.stack(each, axis=1), rtol=1e-5, atol=1e-6)
  assert np.any(slopes) and not np.any(np.asarray(slopes)[case.positives < 0])


@pytest.mark.parametrize("kind", KINDS)
@hypothesis.given(
  size=st.sampled_from([(1, 1, 1, 1), (3, 7, 2, 5), (2, 4, 9, 0)]),
  magnitude=st.sampled_from([0.0, 1.0, 100.0, 1e4]),
  real=st.sampled_from([0.0, 0.5, 1.0]),
  positive=st.sampled_from([0, 1, 9]),
  seed=st.integers(0, 1000),
)
@hypothesis.settings(max_examples=30)
def test_edges_equal_the_definition(kind, size, magnitude, real, positive, seed):
  num_rows, num_labels, chunk, width = size
  rng = np.random.default_rng(seed)
  case = Case(
    # Of width 1 and with powers of two, scores are exact in float32 however large.
    queries=2.0 ** rng.integers(-1, 2, (num_rows, 1)).astype(np.float32),
    labels=(magnitude * rng.integers(-4, 5, (num_labels, 1)) / 4).astype(np.float32),
    positives=draw_columns(rng, num_rows, num_labels, width, rng.integers(0, positive + 1, num_rows)),
    weights=None if kind == "binary" else rng.integers(0, 3, (num_rows, width)).astype(np.float32),
    excluded=draw_columns(rng, num_rows, num_labels, 2, rng.integers(0, 3, num_rows)),
    bias=None,
    where=rng.random(num_labels) < real,
    temperature=1.0,
    scale=np.ones(num_rows, np.float32),
  )
  assert_close(jitted(kind, case, chunk), reference(kind, case))


@pytest.mark.slow
@every_kind
def test_low_precision_tables_are_multiplied_in_float32(kind):
  case = make_case(kind, (6, 50, 16), seed=3, masked=True)
  rounded = case._replace(
    queries=jnp.asarray(case.queries, jnp.bfloat16), labels=jnp.asarray(case.labels, jnp.bfloat16)
  )
  got = jitted(kind, rounded, 25)
  assert [x.dtype for x in got] == [jnp.float32, jnp.bfloat16, jnp.bfloat16, jnp.float32]
  whole = rounded._replace(
    queries=np.asarray(rounded.queries, np.float32), labels=np.asarray(rounded.labels, np.float32)
  )
  per_row, *grads = reference(kind, whole)
  assert_close(got[:1], [per_row])
  assert_close(got[1:], grads, tolerance=2**-8)  # the gradients are rounded to bfloat16, once


def with_every_last_label(kind, case, num_shards):
  """The case with the last label of every shard as a positive, which a wrong bound would lose."""
  size = -(-len(case.labels) // num_shards)
  ends = np.unique(np.minimum(np.arange(1, num_shards + 1) * size, len(case.labels)) - 1)
  positives = np.full((len(case.queries), 9), -1, np.int32)
  positives[:, 1 : 1 + len(ends)] = ends
  weights = (
    None if kind == "binary" else np.arange(positives.size, dtype=np.float32).reshape(positives.shape) % 4
  )
  return case._replace(positives=positives, weights=weights)


@pytest.mark.parametrize(
  "shape", [(2, 4), *(pytest.param(shape, marks=pytest.mark.slow) for shape in ((1, 2), (2, 1), (1, 8)))]
)
@every_kind
def test_meshes_equal_one_device(kind, shape):
  case = with_every_last_label(kind, make_case(kind, masked=True, seed=4), shape[1])
  got = jitted(kind, case, 20, sharding.make(*shape))
  assert_close(got, jitted(kind, case, 40))
  assert_close(got, reference(kind, case))


@every_kind
def test_kept_scores_change_nothing_but_the_products(kind):
  case = with_every_last_label(kind, make_case(kind, masked=True, seed=4), 4)
  # XLA fuses sums with what makes the scores, so their order differs on some CPUs.
  assert_close(jitted(kind, case, 20, keeps=True), jitted(kind, case, 20), tolerance=1e-6)
  assert_close(jitted(kind, case, 20, sharding.make(2, 4), keeps=True), reference(kind, case))
  kept, again = (
    jitted.lower(kind, case, len(case.labels), keeps=keeps).as_text().count("stablehlo.dot_general")
    for keeps in (True, False)
  )
  assert kept == 3 < again  # scores, and the gradients of queries and of labels


@pytest.mark.parametrize("shape", [(2, 1), (2, 4)])
def test_sharded_inputs_stay_where_they_are(shape):
  mesh, kind = sharding.make(*shape), "decoupled_softmax"
  case = with_every_last_label(kind, make_case(kind, (6, 40, 8), seed=5), shape[1])
  put = lambda table, axis: jax.device_put(table, NamedSharding(mesh, P(axis, None)))
  sharded = case._replace(queries=put(case.queries, "data"), labels=put(case.labels, "label"))
  got = jitted(kind, sharded, 4, mesh)
  assert_close(got, reference(kind, case))
  assert {shard.data.shape for shard in got[1].addressable_shards} == {(6 // shape[0], 8)}
  assert {shard.data.shape for shard in got[2].addressable_shards} == {(40 // shape[1], 8)}


@pytest.mark.slow
@pytest.mark.parametrize("shape", [None, (2, 4)])
@every_kind
def test_positives_that_were_not_sampled_are_as_if_not_there(kind, shape):
  case, mesh = make_case(kind, (5, 30, 4), seed=8), shape and sharding.make(*shape)
  case = case._replace(positives=np.tile([3, 17, -1], (5, 1)))
  others = np.tile([0, 29, -1, 8], (5, 1))
  for excluded in (np.tile([17, -1, 12], (5, 1)), others[:, :0]):
    got = jitted(kind, case._replace(excluded=excluded), mesh=mesh, unsampled=others)
    every = np.concatenate([excluded, others], axis=1)
    assert_close(got, jitted(kind, case._replace(excluded=every), mesh=mesh), tolerance=1e-6)


@pytest.mark.parametrize("shape", [None, (2, 2)])
def test_each_row_may_have_its_own_k(shape):
  mesh = shape and sharding.make(*shape)
  case = make_case("soft_top_k", (5, 12, 4), seed=6)
  loss = jax.jit(
    lambda k: streaming_loss("soft_top_k", case.queries, case.labels, case.positives, chunk=6, mesh=mesh, k=k)
  )
  counts = np.array([1, 2, 5, 11, 30], np.float32)
  alone = [loss(np.full_like(counts, k))[row] for row, k in enumerate(counts)]
  np.testing.assert_allclose(loss(counts), alone, rtol=1e-5)


@pytest.mark.parametrize("prior", [4.0, np.linspace(-2, 6, 5, dtype=np.float32)], ids=["one", "of each row"])
@pytest.mark.parametrize("shape", [None, (2, 2)])
def test_binary_takes_a_prior_off_all_scores(shape, prior):
  """It is `losses.binary` of scores that it was subtracted from; gradients too."""
  case = make_case("binary", masked=True)
  found = jitted("binary", case, mesh=shape and sharding.make(*shape), prior=prior)
  assert_close(found, dense("binary", case._replace(bias=case.bias - np.reshape(prior, (-1, 1)))), 5e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind, dtype", [(kind, "float32") for kind in KINDS] + [("softmax", "bfloat16")])
def test_no_matrix_of_all_scores_is_made(kind, dtype):
  num_rows, dim, chunk = 256, 8, 500

  def extra_memory(num_labels):
    positives = jnp.zeros((num_rows, 3), jnp.int32)

    def total(queries, labels):
      return jnp.sum(streaming_loss(kind, queries, labels, positives, chunk=chunk, **OPTIONS[kind]))

    tables = [jax.ShapeDtypeStruct((rows, dim), dtype) for rows in (num_rows, num_labels)]
    step = jax.jit(jax.value_and_grad(total, argnums=(0, 1)))
    memory = step.lower(*tables).compile().memory_analysis()
    return memory.temp_size_in_bytes

  once, twice = extra_memory(20_000), extra_memory(40_000)  # [B, L] would be 20 MB, and 40
  assert once < 4 * 4 * (num_rows * chunk + 20_000 * dim)
  assert twice - once <= 4 * 20_000 * dim


def test_repeated_calls_do_not_trace_again(traces):
  case = make_case("softmax")
  arguments = case.queries, case.labels, case.positives
  streaming_loss("softmax", *arguments, chunk=37, temperature=0.5)
  traces.clear()
  streaming_loss("softmax", *arguments, chunk=37, temperature=0.7)
  assert traces == []
  streaming_loss("softmax", *arguments, chunk=38, temperature=0.7)
  assert traces  # a new chunk is a new program


@every_kind
def test_empty_batches_and_empty_tables(kind):
  case = make_case(kind)
  loss = functools.partial(streaming_loss, kind, chunk=8, **OPTIONS[kind])
  for keeps in (True, False):
    kept = {"keeps_scores": keeps}
    assert loss(case.queries[:0], case.labels, case.positives[:0], **kept).shape == (0,)
    none = loss(case.queries, case.labels[:0], np.full((5, 2), -1), **kept)
    np.testing.assert_array_equal(none, np.zeros(5))


_CASE = make_case("softmax")
_POSITIVES = _CASE.positives


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"kind": "hinge"}, "no loss of kind 'hinge'; there are 'softmax'"),
    ({"labels": _CASE.labels[:, :1]}, r"labels \[L, D\] do not match"),
    ({"positives": _POSITIVES[:2]}, r"positives \[B, P\] do not match"),
    ({"excluded": _POSITIVES[0]}, r"excluded \[B, F\] do not match"),
    ({"unsampled": _POSITIVES[:2]}, r"unsampled \[B, U\] do not match"),
    ({"weights": _POSITIVES[:, :1]}, "weights and positives"),
    ({"where": _POSITIVES >= 0}, r"where \[L\] and labels"),
    ({"chunk": 0}, "chunk must be at least 1, got 0"),
    ({"kind": "binary", "weights": np.ones(_POSITIVES.shape)}, "'binary' takes no weights"),
    ({"k": 3}, r"not known: \['k'\]"),
    ({"kind": "soft_top_k"}, r"missing: \['k'\]"),
  ],
)
def test_wrong_arguments_are_refused(changes, message):
  arguments = {"kind": "softmax", "queries": _CASE.queries, "labels": _CASE.labels, "positives": _POSITIVES}
  with pytest.raises(ValueError, match=message):
    streaming_loss(**arguments | {"chunk": 8} | changes)
