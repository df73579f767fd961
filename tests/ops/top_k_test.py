"""Exact search: equal to a full sort, ties included, however the labels are cut."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xmc_jax.distributed import sharding
from xmc_jax.ops import top_k

MESHES = [(1, 1), (2, 1), (1, 4), (2, 4)]


def reference(queries, labels, k):
  """A stable sort of all scores, best first."""
  scores = queries.astype(np.float32) @ labels.astype(np.float32).T
  ids = np.argsort(-scores, axis=1, kind="stable")[:, :k]
  missing = ((0, 0), (0, k - ids.shape[1]))
  best = np.take_along_axis(scores, ids, axis=1)
  return np.pad(best, missing, constant_values=-np.inf), np.pad(ids, missing, constant_values=-1)


def small_integers(num_queries, num_labels, width, seed=0):
  """Queries and labels with exact products and many ties."""
  rng = np.random.default_rng(seed)
  draw = lambda rows: rng.integers(-2, 3, (rows, width)).astype(np.float32)
  return draw(num_queries), draw(num_labels)


def assert_equal(got, expected):
  assert got[0].dtype == jnp.float32 and got[1].dtype == jnp.int32
  np.testing.assert_array_equal(got[1], expected[1])
  np.testing.assert_array_equal(got[0], expected[0])


@pytest.mark.parametrize("shape", [None, (2, 4)])
@pytest.mark.parametrize("k", [1, 4, 30])
def test_recall_below_one_is_exact_off_tpus(k, shape):
  """Of 23 labels, 21 count: the others, and empty places, are never found."""
  rng = np.random.default_rng(0)
  queries, labels = (rng.normal(size=(rows, 3)).astype(np.float32) for rows in (6, 23))
  labels[21:] *= 100
  mesh = shape and sharding.make(*shape)
  scores, ids = top_k(queries, labels, k, chunk=7, mesh=mesh, num_valid=21, recall=0.9)
  expected = reference(queries, labels[:21], k)
  np.testing.assert_array_equal(ids, expected[1])
  np.testing.assert_allclose(scores, expected[0], rtol=1e-6)


@pytest.mark.parametrize("order", ["random", "rising", "falling"])
@pytest.mark.parametrize("width", [3, 40])
@pytest.mark.parametrize("k", [1, 20, 150])
def test_large_chunks_of_which_only_blocks_are_looked_into(k, width, order):
  # Rising: every chunk beats those before, and all of it counts. Falling: none does after the first.
  queries, labels = small_integers(6, 9000, width)
  if order != "random":
    labels = labels[np.argsort(labels @ queries[0])[:: 1 if order == "rising" else -1]]
  assert_equal(top_k(queries, labels, k, chunk=2048), reference(queries, labels, k))


@hypothesis.given(
  num_labels=st.sampled_from([1, 2, 7, 16, 23]),
  width=st.sampled_from([1, 2]),
  k=st.sampled_from([1, 3, 9]),
  chunk=st.sampled_from([1, 3, 16]),
  seed=st.integers(0, 1000),
)
def test_equals_a_stable_sort(num_labels, width, k, chunk, seed):
  # Of width 1, half of the products are 0, many of them -0.0.
  queries, labels = small_integers(4, num_labels, width, seed)
  assert_equal(top_k(queries, labels, k, chunk=chunk), reference(queries, labels, k))


@pytest.mark.parametrize("shape", [None, *MESHES])
@pytest.mark.parametrize("num_valid", [0, 1, 13, 23])
def test_meshes_equal_one_device_and_padding_labels_are_never_returned(shape, num_valid):
  """Neither number divides by the devices, and k exceeds the labels of one."""
  queries, labels = small_integers(7, 23, 3)
  expected = reference(queries, labels[:num_valid], 9)
  labels[num_valid:] = np.nan  # whatever stands there
  mesh = shape and sharding.make(*shape)
  assert_equal(top_k(queries, labels, 9, chunk=5, mesh=mesh, num_valid=num_valid), expected)


def test_sharded_inputs_stay_where_they_are():
  mesh = sharding.make(2, 4)
  queries, labels = small_integers(8, 32, 3)
  split = lambda table, axis: jax.device_put(
    table, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(axis, None))
  )
  scores, ids = top_k(split(queries, "data"), split(labels, "label"), 5, mesh=mesh)
  assert_equal((scores, ids), reference(queries, labels, 5))
  assert {shard.data.shape for shard in ids.addressable_shards} == {(4, 5)}  # still split over 'data'


def test_low_precision_tables_are_multiplied_in_float32():
  rng = np.random.default_rng(1)
  queries = rng.normal(size=(4, 32)).astype(np.float32)
  labels = jnp.asarray(rng.normal(size=(50, 32)), jnp.bfloat16)
  got = top_k(queries, labels, 5)
  np.testing.assert_allclose(got[0], reference(queries, np.asarray(labels, np.float32), 5)[0], rtol=1e-5)


def test_empty_queries_and_empty_tables():
  queries, labels = small_integers(3, 4, 2)
  assert top_k(queries[:0], labels, 2)[1].shape == (0, 2)
  scores, ids = top_k(queries, labels[:0], 2)
  assert np.all(np.asarray(ids) == -1) and np.all(np.isneginf(scores))


@pytest.mark.parametrize("shape", [None, (2, 4)])
def test_repeated_calls_do_not_trace_again(shape, traces):
  mesh = shape and sharding.make(*shape)
  queries, labels = small_integers(8, 32, 3)
  top_k(queries, labels, 4, mesh=mesh, num_valid=30)
  traces.clear()
  top_k(queries, labels, 4, mesh=mesh, num_valid=20)
  top_k(queries + 1, labels, 4, mesh=mesh)
  assert traces == []
  top_k(queries, labels, 5, mesh=mesh)
  assert traces  # a new k is a new program


def test_no_matrix_of_all_scores_is_made():
  # 64 x 100,000 scores would be 25.6 MB.
  queries, labels = jnp.zeros((64, 4)), jnp.zeros((100_000, 4))
  step = jax.jit(lambda q, z: top_k(q, z, 10, chunk=1000))
  memory = step.lower(queries, labels).compile().memory_analysis()
  assert memory.temp_size_in_bytes < 10 * 64 * 1010 * 4


def test_wrong_arguments_are_refused():
  queries, labels = small_integers(3, 4, 2)
  with pytest.raises(ValueError, match="do not match"):
    top_k(queries, labels[:, :1], 2)
  with pytest.raises(ValueError, match="at least 1, got k=0"):
    top_k(queries, labels, 0)
  with pytest.raises(ValueError, match="chunk=0"):
    top_k(queries, labels, 1, chunk=0)
  with pytest.raises(ValueError, match="must be above 0 and at most 1"):
    top_k(queries, labels, 1, recall=0.0)
