"""Ranking against a full sort: in blocks, on devices, and by NumPy on one CPU."""

import functools
import sys

import hypothesis
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import strategies as st

from xmc_jax.distributed import sharding
from xmc_jax.retrieval import host_search
from xmc_jax.retrieval.search import contained, search, values_at


def _sorted(scores, k):
  order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
  return np.take_along_axis(scores, order, 1), order


@pytest.mark.parametrize("block, shape", [(1, None), (7, None), (1024, None), (8, (2, 1)), (7, (2, 4))])
def test_blocks_and_filters_equal_a_full_sort(block, shape, monkeypatch):
  monkeypatch.setattr(sys.modules[search.__module__], "BLOCK", block)
  rng = np.random.default_rng(0)
  queries, labels = (rng.integers(-2, 3, (rows, 4)).astype(np.float32) for rows in (23, 40))
  filtered = sp.csr_matrix(rng.random((23, 40)) < 0.05)
  found = search(queries, labels, 10, exclude=filtered, devices=shape and sharding.make(*shape))
  expected_scores, expected_ids = _sorted(np.where(filtered.toarray(), -np.inf, queries @ labels.T), 10)
  np.testing.assert_array_equal(found.ids, expected_ids)
  np.testing.assert_array_equal(found.scores, expected_scores)
  assert found.ids.dtype == np.int32 and found.scores.dtype == np.float32


def test_no_queries():
  found = search(np.zeros((0, 3), np.float32), np.ones((5, 3), np.float32), 2)
  assert found.ids.shape == found.scores.shape == (0, 2)


def test_a_row_with_many_excluded_labels_keeps_k_and_does_not_disturb_the_others(monkeypatch):
  monkeypatch.setattr(sys.modules[search.__module__], "BLOCK", 2)
  rng = np.random.default_rng(1)
  counts = np.array([0, 37, 1, 3, 0, 20, 2, 40])
  queries, labels = rng.normal(size=(8, 5)).astype(np.float32), rng.normal(size=(40, 5)).astype(np.float32)
  excluded = sp.csr_matrix(rng.random((8, 40)).argsort(axis=1) < counts[:, None])
  found = search(queries, labels, 10, exclude=excluded)
  expected, order = _sorted(np.where(excluded.toarray(), -np.inf, queries @ labels.T), 10)
  np.testing.assert_array_equal(found.ids, np.where(np.isfinite(expected), order, -1))
  np.testing.assert_allclose(found.scores, expected, rtol=1e-5)


def test_devices_search_the_next_block_while_the_host_stores_the_last(monkeypatch):
  """On accelerators, which a larger block occupies."""
  happened = []
  module = sys.modules[search.__module__]
  monkeypatch.setattr(module, "_platform", lambda array: "gpu")

  def told(real, *args, **kwargs):
    happened.append((real.__name__, len(args[0])))
    return real(*args, **kwargs)

  for owner, name in ((module.ops, "top_k"), (module.sharding, "to_host")):
    monkeypatch.setattr(owner, name, functools.partial(told, getattr(owner, name)))
  rng = np.random.default_rng(0)
  queries, labels = (rng.integers(-2, 3, (rows, 4)).astype(np.float32) for rows in (9000, 40))
  found = search(queries, labels, 3, devices=sharding.make(2, 1))
  size = module.BLOCK_OF_ACCELERATORS
  begun, stored = ("top_k", size), [("to_host", size)] * 2
  assert happened == [begun, begun, *stored, begun, *stored, *stored]
  np.testing.assert_array_equal(found.ids, _sorted(queries @ labels.T, 3)[1])


@hypothesis.given(st.integers(0, 2**31), st.integers(0, 3), st.integers(1, 5), st.floats(0, 1))
def test_values_are_looked_up(seed, num_rows, num_labels, share):
  rng = np.random.default_rng(seed)
  dense = (rng.random((num_rows, num_labels)) < share) * rng.normal(size=(num_rows, num_labels))
  ids = rng.integers(0, num_labels, (num_rows, 4))
  found = values_at(sp.csr_matrix(dense), ids)
  assert found.dtype == np.float32
  np.testing.assert_array_equal(found, np.take_along_axis(dense.astype(np.float32), ids, axis=1))
  np.testing.assert_array_equal(contained(ids, sp.csr_matrix(dense)), found != 0)


def test_values_of_a_row_whose_entries_are_in_disorder():
  scores = sp.csr_matrix((np.array([1.0, 2.0, 3.0]), np.array([4, 0, 2]), np.array([0, 3])), (1, 5))
  assert values_at(scores, np.array([[0, 1, 2, 3, 4]])).tolist() == [[2, 0, 3, 0, 1]]


# --- by NumPy: ties, chunks of all sizes, k at its limits ---


@hypothesis.given(
  num_queries=st.integers(1, 9),
  num_labels=st.integers(1, 70),
  chunk=st.integers(1, 80),
  spread=st.sampled_from([0, 1, 3, 1000]),
  depth=st.floats(0, 1),
  seed=st.integers(0, 2**16),
)
def test_it_is_a_full_sort_with_ties_in_the_order_of_ids(num_queries, num_labels, chunk, spread, depth, seed):
  rng = np.random.default_rng(seed)
  # Whole numbers: products are exact, and a small spread makes many of them equal.
  drawn = lambda count: rng.integers(-spread, spread + 1, (count, 3)).astype(np.float32)
  queries, labels = drawn(num_queries), drawn(num_labels)
  k = 1 + round(depth * (num_labels - 1))
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(host_search, "CHUNK", chunk)
    scores, ids = host_search.top_k(queries, labels, k)
  expected_scores, expected_ids = _sorted(queries @ labels.T, k)
  np.testing.assert_array_equal(ids, expected_ids)
  np.testing.assert_array_equal(scores, expected_scores)
  assert scores.dtype == np.float32 and ids.dtype == np.int32


@pytest.mark.parametrize("values", [[-0.0, 0, -0.0], [1e-45, -1e-45, 0], [3e38, -3e38, 1], [-1, -2, -1]])
def test_zeros_of_both_signs_are_equal_and_extremes_keep_their_order(values):
  labels = np.asarray(values, np.float32)[:, None]
  scores, ids = host_search.top_k(np.ones((2, 1), np.float32), labels, 3)
  expected_scores, expected_ids = _sorted(np.tile(labels.T, (2, 1)), 3)
  np.testing.assert_array_equal(ids, expected_ids)
  np.testing.assert_array_equal(scores, expected_scores)


def test_labels_without_a_score_stand_last():
  labels = np.array([[1.0], [np.nan], [3.0], [-np.inf], [2.0]], np.float32)
  scores, ids = host_search.top_k(np.ones((2, 1), np.float32), labels, 5)
  np.testing.assert_array_equal(ids, [[2, 4, 0, -1, -1]] * 2)
  np.testing.assert_array_equal(scores, [[3, 2, 1, -np.inf, -np.inf]] * 2)
  scores, ids = host_search.top_k(np.array([[np.nan], [1.0]], np.float32), labels[[0, 2, 4]], 2)
  np.testing.assert_array_equal(ids, [[-1, -1], [1, 2]])
