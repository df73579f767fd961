"""Votes and local ridge regression, against loops over single queries in float64."""

import hypothesis
import hypothesis.extra.numpy as hnp
import made_corpora
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import strategies as st

from xmc_jax.retrieval.lexical import Lexicon
from xmc_jax.retrieval.memory import Neighbors, merged, ridge_weights


@pytest.fixture
def rng():
  return np.random.default_rng(5)


def test_votes_are_summed_by_label(rng):
  truth = made_corpora.pairs(rng, (9, 7), 0.4)
  ids = np.array([[3, 0, 8, -1], [2, 2, -1, 5], [-1, -1, -1, -1], [6, 1, 4, 7]], np.int32)
  weights = np.array([[0.5, 0.25, -1, 0], [1, 2, 0, 0.125], [0] * 4, [0, 1, 1, 3]], np.float32)
  expected = np.zeros((4, 7))
  for row in range(4):
    for point, weight in zip(ids[row], weights[row]):
      if point >= 0:
        expected[row] += weight * truth[[point]].toarray()[0]
  votes = Neighbors(ids, weights).votes(truth)
  assert votes.dtype == np.float32 and votes.has_sorted_indices
  np.testing.assert_allclose(votes.toarray(), expected, atol=1e-6)
  assert votes[[2]].nnz == 0


_IDS = hnp.arrays(np.int32, st.tuples(st.just(3), st.integers(0, 6)), elements=st.integers(-1, 6))


@hypothesis.given(_IDS, _IDS)
def test_merged_lists_have_each_id_once(one, other):
  found, both = merged(one, other), np.concatenate([one, other], axis=1)
  assert found.shape == both.shape and found.dtype == np.int32
  for row, ids in zip(found.tolist(), both.tolist()):
    assert [label for label in row if label >= 0] == sorted({*ids} - {-1})
    assert min(row, default=-1) >= -1


# --- ridge regression ---


def points(rng, count: int) -> tuple[np.ndarray, sp.csr_matrix]:
  texts = made_corpora.texts(rng, count)
  vectors = made_corpora.unit(made_corpora.vectors(rng, count)).astype(np.float32)
  return vectors, Lexicon(texts).vectors(texts)


def one_by_one(near, vectors, words, point_vectors, point_words, num_points=64, penalty=1.0) -> list[dict]:
  """Weights by point, of a dense solve for each query."""
  wide, out = point_words.toarray().astype(np.float64), []
  vectors, point_vectors = vectors.astype(np.float64), point_vectors.astype(np.float64)
  queries = words.toarray().astype(np.float64)
  for row, ids in enumerate(near.tolist()):
    ids = np.array([point for point in ids if point >= 0], int)
    k = wide[ids] @ queries[row] + np.maximum(point_vectors[ids] @ vectors[row], 0) ** 2
    best = np.argsort(-k, kind="stable")[:num_points]
    ids, k = ids[best], k[best]
    gram = wide[ids] @ wide[ids].T + np.maximum(point_vectors[ids] @ point_vectors[ids].T, 0) ** 2
    out.append(dict(zip(ids.tolist(), np.linalg.solve(gram + penalty * np.eye(len(ids)), k).tolist())))
  return out


def assert_weights(found: Neighbors, expected: list[dict]):
  assert found.ids.dtype == np.int32 and found.weights.dtype == np.float32
  for ids, weights, wanted in zip(found.ids.tolist(), found.weights.tolist(), expected, strict=True):
    got = {point: weight for point, weight in zip(ids, weights) if point >= 0}
    assert len(got) == sum(point >= 0 for point in ids)  # none twice
    assert got == pytest.approx(wanted, abs=2e-5)
    assert not any(weight for point, weight in zip(ids, weights) if point < 0)


@pytest.mark.parametrize("num_points, penalty", [(64, 1.0), (5, 1.0), (1, 0.25), (12, 3.0)])
def test_ridge_weights_are_those_of_a_solve_for_each_query(rng, num_points, penalty):
  vectors, words = points(rng, 50)
  (words,) = made_corpora.few_columns(words)
  queries, query_words = slice(0, 8), words[:8]
  near = np.array([np.sort(rng.choice(np.arange(8, 50), 20, replace=False)) for _ in range(8)], np.int32)
  near[1, 5:] = -1  # fewer than num_points
  near[2, ::2] = -1  # padding between others
  near[3] = -1  # none
  given = (near, vectors[queries], query_words, vectors, words)
  found = ridge_weights(*given, num_points=num_points, penalty=penalty)
  assert found.ids.shape == (8, min(num_points, 20))
  assert_weights(found, one_by_one(*given, num_points, penalty))


def test_near_duplicates_share_a_vote(rng):
  """Two equal points of kernel 2 with the query: each weighs 2 / (2 + 2 + 1), one alone 2 / (2 + 1)."""
  vectors, words = np.eye(2, dtype=np.float32)[[0, 0, 1]], sp.csr_matrix(np.eye(3, 2)[[0, 0, 1]])
  near = np.array([[0, 1, 2], [1, -1, -1]], np.int32)
  found = ridge_weights(near, vectors[[0, 0]], words[[0, 0]].astype(np.float32), vectors, words)
  assert_weights(found, [{0: 0.4, 1: 0.4, 2: 0.0}, {1: 2 / 3}])


def test_points_that_say_nothing_weigh_nothing(rng):
  """Zero vectors, without a word; and a query that is one."""
  vectors, words = points(rng, 12)
  (words,) = made_corpora.few_columns(words)
  vectors[3] = vectors[0] = 0
  words = sp.diags((np.arange(12) % 3 > 0).astype(float)).dot(words).astype(np.float32).tocsr()
  near = np.tile(np.arange(1, 12, dtype=np.int32), (2, 1))
  found = ridge_weights(near, vectors[:2], words[:2], vectors, words)
  assert_weights(found, one_by_one(near, vectors[:2], words[:2], vectors, words))
  assert not found.weights[0].any() and found.weights[1].any()


def test_no_candidates_at_all(rng):
  vectors, words = points(rng, 3)
  none = np.zeros((3, 0), np.int32)
  for found in (
    ridge_weights(none, vectors, words, vectors, words),
    ridge_weights(none, vectors, words, vectors[:0], words[:0]),
    ridge_weights(none[:0], vectors[:0], words[:0], vectors, words),
  ):
    assert found.ids.shape[1] == found.weights.shape[1] == 0
