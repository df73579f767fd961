"""Fusion: scikit-learn's own tree, brute force over all candidates, and what is left out."""

import numpy as np
import pytest
import scipy.sparse as sp
from made_corpora import unit_vectors
from sklearn.tree import DecisionTreeClassifier

from xmc_jax.errors import UserError
from xmc_jax.retrieval import fusion
from xmc_jax.retrieval.fusion import Fusion, Tree

N, L, D = 60, 40, 6


@pytest.fixture
def rng():
  return np.random.default_rng(3)


def _fusion(rng, num_candidates=10):
  vectors = unit_vectors(rng, L, D), unit_vectors(rng, L, D)
  return Fusion(*vectors, 1 + rng.random(L), num_candidates=num_candidates, devices=None)


def _scores(fused, queries):
  """`[N, L]` classifier scores and similarities, in float64."""
  return [queries.astype(np.float64) @ vectors.T.astype(np.float64) for vectors in fused._vectors]


def test_the_tree_is_scikit_learns(rng):
  features = rng.normal(size=(500, 3)).astype(np.float32)
  relevant = features[:, 0] + 0.5 * rng.normal(size=500) > 0.3
  tree = fusion._fitted(features, relevant, depth=4)
  theirs = DecisionTreeClassifier(max_depth=4, random_state=0).fit(features, relevant)
  expected = theirs.predict_proba(features)[:, 1]
  np.testing.assert_allclose(tree.predict(features), expected, atol=1e-6)
  # On the very thresholds, too.
  edges = features.copy()
  inner = tree.feature >= 0
  edges[: inner.sum(), tree.feature[inner]] = tree.threshold[inner].astype(np.float32)[:, None]
  np.testing.assert_allclose(tree.predict(edges), theirs.predict_proba(edges)[:, 1], atol=1e-6)
  assert tree.predict(features.reshape(5, 100, 3)).shape == (5, 100)


@pytest.mark.parametrize("answer, expected", [(True, 1.0), (False, 0.0)])
def test_one_kind_of_pairs_alone(rng, answer, expected):
  tree = fusion._fitted(rng.normal(size=(20, 3)).astype(np.float32), np.full(20, answer), depth=3)
  assert np.all(tree.predict(np.zeros((4, 3), np.float32)) == expected)


def test_a_tree_is_kept(rng, tmp_path):
  tree = fusion._fitted(rng.normal(size=(99, 3)).astype(np.float32), rng.random(99) < 0.5, depth=3)
  tree.save(tmp_path / "fusion.npz")
  for one, other in zip(tree, Tree.load(tmp_path / "fusion.npz")):
    assert one.dtype == other.dtype and one.tobytes() == other.tobytes()
  for damaged in (b"PK\x03\x04 no", b"", b"\x93NUMPY"):
    (tmp_path / "fusion.npz").write_bytes(damaged)
    with pytest.raises(UserError, match=r"fusion\.npz: not readable"):
      Tree.load(tmp_path / "fusion.npz")


def test_the_best_of_both_lists_are_fitted_and_ranked_by_the_sum_of_three(rng):
  """Without excluded pairs; rows stay full."""
  fused, queries = _fusion(rng), unit_vectors(rng, N, D)
  truth, out = (sp.csr_matrix(rng.random((N, L)) < share) for share in (0.1, 0.3))
  fused.fit(queries, truth, out, depth=3)
  scores, candidates = _scores(fused, queries), []
  for row in range(N):
    left = np.setdiff1d(np.arange(L), out[row].indices)
    candidates.append(sorted({label for one in scores for label in left[np.argsort(-one[row, left])[:10]]}))
  rows, labels = np.repeat(np.arange(N), list(map(len, candidates))), np.concatenate(candidates)
  features = [*(one[rows, labels] for one in scores), fused._inverse_propensity[labels]]
  features = np.stack(features, axis=1).astype(np.float32)
  theirs = DecisionTreeClassifier(max_depth=3, random_state=0)
  theirs.fit(features, np.asarray(truth[rows, labels]).ravel())
  predicted = theirs.predict_proba(features)[:, 1]
  np.testing.assert_allclose(fused.tree.predict(features), predicted, atol=1e-6)
  total, found = features[:, 0] + features[:, 1] + predicted, fused.rank(queries, 10, exclude=out)
  for row in range(N):
    mine = np.flatnonzero(rows == row)
    best = mine[np.argsort(-total[mine], kind="stable")[:10]]
    np.testing.assert_allclose(found.scores[row], total[best], atol=1e-5)
    assert found.ids[row].tolist() == labels[best].tolist()


def test_more_labels_than_candidates_and_than_there_are(rng):
  fused, queries = _fusion(rng, num_candidates=1), unit_vectors(rng, 3, D)
  found = fused.rank(queries, L + 2)
  assert found.ids.shape == (3, L + 2)
  for ids in found.ids:
    assert sorted(ids[:L]) == list(range(L)) and ids[L:].tolist() == [-1, -1]
  assert np.all(np.isneginf(found.scores[:, L:]))


def test_no_queries(rng):
  found = _fusion(rng).rank(np.zeros((0, D), np.float32), 4)
  assert found.ids.shape == (0, 4)


def test_without_a_tree_it_is_the_plain_sum_and_a_last_column_of_labels_is_added(rng):
  texts, classifiers = unit_vectors(rng, 2, L, D + 1)
  queries = unit_vectors(rng, N, D)
  fused = Fusion(texts, classifiers, 1 + rng.random(L), num_candidates=L, devices=None)
  expected = np.column_stack([queries, np.ones(N)]) @ (texts + classifiers).T
  found = fused.rank(queries, L)
  np.testing.assert_array_equal(found.ids, np.argsort(-expected, axis=1))
  np.testing.assert_allclose(found.scores, np.take_along_axis(expected, found.ids, 1), atol=1e-5)
