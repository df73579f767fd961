"""NumPy's exact search against a full sort: ties, chunks of all sizes, k at its limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmc_jax.retrieval import host_search


def _sorted(scores, k):
  order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
  return np.take_along_axis(scores, order, 1), order


@given(
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
