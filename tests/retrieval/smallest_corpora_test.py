"""Corpora and queries at the edge: an empty memory, one label, no words, vectors that are not finite."""

import made_corpora
import numpy as np
import pytest
import scipy.sparse as sp

from xmc_jax.retrieval.features import feature_names
from xmc_jax.retrieval.hybrid import HybridRanker, fit_model
from xmc_jax.retrieval.hybrid_model import fixed
from xmc_jax.retrieval.sources import SOURCES, Corpus, Queries, Retriever


def rank(corpus: Corpus, queries: Queries, k: int, exclude=None):
  """Ranks, fits and gives reasons, and checks what always holds; returns the rankings, joined and alone."""
  retriever = Retriever(corpus)
  ranker = HybridRanker(retriever, fixed(feature_names(retriever.names)))
  found, alone = ranker.rank_with_sources(queries, k, exclude)
  num_queries, num_labels = len(queries.vectors), corpus.truth.shape[1]
  for one in (found, *alone.values()):
    assert one.ids.shape == one.scores.shape == (num_queries, k)
    assert ((one.ids >= -1) & (one.ids < num_labels)).all()
    assert (np.isfinite(one.scores) == (one.ids >= 0)).all()
    for ids in one.ids.tolist():
      labels = [label for label in ids if label >= 0]
      assert len(set(labels)) == len(labels) and ids == labels + [-1] * (k - len(labels))
  in_range = found.scores[found.ids >= 0]
  assert ((in_range > 0) & (in_range < 1)).all()
  reasons = ranker.explain(queries, found.ids)
  assert [len(of_row) for of_row in reasons] == (found.ids >= 0).sum(axis=1).tolist()
  truth = made_corpora.pairs(np.random.default_rng(0), (num_queries, num_labels), 0.5)
  fitted = fit_model(retriever, queries, truth, exclude)
  assert not fitted.has_trees and fitted.num_rows <= num_queries
  again = HybridRanker(retriever, fitted).rank(queries, k, exclude)
  assert (np.isfinite(again.scores) == (found.ids >= 0)).all()
  return found, alone


def small(num_labels: int, num_points: int, **changes) -> Corpus:
  return made_corpora.corpus(num_labels, num_points)._replace(**changes)


QUERIES = made_corpora.queries(3)
OF_POINTS, OF_WORDS = {"memory", "memory_regression", "lexical_memory"}, {"lexical_memory", "lexical_labels"}
# The corpus, the queries, and the sources that find nothing.
CASES = {
  "no training query": (small(9, 0), QUERIES, OF_POINTS),
  "no labels of training queries": (small(6, 8, truth=sp.csr_matrix((8, 6), dtype="f")), QUERIES, OF_POINTS),
  **{
    f"queries of {text!a}": (small(12, 30), QUERIES._replace(texts=[text] * 3), OF_WORDS)
    for text in ("", "  \n", "?!", "\ud800", "unheard-of")
  },
  "no words": (small(12, 30, point_texts=[""] * 30, label_texts=["-"] * 12), QUERIES, OF_WORDS),
}


@pytest.mark.parametrize("name", CASES)
def test_all_labels_are_ranked_where_sources_find_nothing(name):
  corpus, queries, silent = CASES[name]
  found, alone = rank(corpus, queries, corpus.truth.shape[1])
  assert (found.ids >= 0).all()
  assert {name for name, one in alone.items() if (one.ids == -1).all()} == silent


@pytest.mark.parametrize("num_points", [0, 1, 5])
@pytest.mark.parametrize("num_labels", [1, 2])
def test_one_label_or_two(num_labels, num_points):
  found, _ = rank(small(num_labels, num_points), made_corpora.queries(3), num_labels)
  assert np.sort(found.ids, axis=1).tolist() == [list(range(num_labels))] * 3


def test_one_training_query():
  truth = sp.csr_matrix(np.array([[0, 1, 0, 1, 0]], np.float32))
  corpus = small(5, 1, truth=truth, point_texts=["barn kelt"])
  vectors = np.repeat(corpus.point_vectors, 2, axis=0) * [[1], [-1]]
  found, alone = rank(corpus, Queries(vectors.astype(np.float32), ["barn", "nothing known"]), 5)
  assert (found.ids >= 0).all()
  assert alone["memory"].ids[:, :3].tolist() == [[1, 3, -1], [-1, -1, -1]]
  np.testing.assert_allclose(alone["memory"].scores[0, :2], 1)
  assert alone["lexical_memory"].ids[:, :3].tolist() == [[1, 3, -1], [-1, -1, -1]]


@pytest.mark.parametrize("k", [6, 7, 50, 200])
def test_as_many_labels_as_there_are_and_more(k):
  found, _ = rank(small(6, 20), made_corpora.queries(3), k)
  assert np.sort(found.ids[:, :6], axis=1).tolist() == [list(range(6))] * 3
  assert (found.ids[:, 6:] == -1).all()


def test_all_pairs_excluded():
  found, _ = rank(small(5, 9), made_corpora.queries(3), 5, sp.csr_matrix(np.ones((3, 5), bool)))
  assert (found.ids == -1).all()


def test_all_vectors_zero():
  corpus = made_corpora.corpus(12, 30, classifier=False)
  labels = {"encoder": 0 * corpus.label_vectors["encoder"]}
  corpus = corpus._replace(label_vectors=labels, point_vectors=0 * corpus.point_vectors)
  found, _ = rank(corpus, QUERIES._replace(vectors=0 * QUERIES.vectors), 12)
  assert (found.ids >= 0).all()


# --- vectors that are not finite count as zeros ---


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("what", ["queries", "points", "encoder", "classifier"])
def test_vectors_that_are_not_finite_count_as_zeros(what, value):
  def ranked(value, columns):
    """Ranks where the second vector has this value everywhere, and the third in these columns."""
    corpus, queries = small(12, 30), made_corpora.queries(5)
    table = {"queries": queries.vectors, "points": corpus.point_vectors, **corpus.label_vectors}[what]
    table[1] = value
    table[2, columns] = value
    return rank(corpus, queries, 12)

  found, alone = ranked(value, 3)
  expected, apart = ranked(0, slice(None))
  assert found.ids.tolist() == expected.ids.tolist()
  np.testing.assert_array_equal(found.scores, expected.scores)
  for name in SOURCES:
    np.testing.assert_array_equal(alone[name].ids, apart[name].ids, err_msg=name)


@pytest.mark.parametrize("length", [1e-30, 1e-6, 300.0, 1e15])
def test_vectors_of_any_length(length):
  """Products are divided by the temperature: far from the best label nothing is left of a score."""
  corpus, queries = small(60, 30), made_corpora.queries(5)
  long = {name: vectors * np.float32(length) for name, vectors in corpus.label_vectors.items()}
  _, alone = rank(corpus._replace(label_vectors=long), queries, 60)
  for name, vectors in long.items():
    products = queries.vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    assert alone[name].ids.tolist() == np.argsort(-products, axis=1).tolist()
    assert alone[name].scores.max() <= 1
