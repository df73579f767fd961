"""Each source against its docstring done by brute force in float64, and what is left out."""

import made_corpora
import numpy as np
import pytest

from xmc_jax import config as configs
from xmc_jax.retrieval.lexical import Lexicon
from xmc_jax.retrieval.sources import SOURCES, Block, Corpus, Queries, Retriever

VIEWS = ("encoder", "classifier")


@pytest.fixture(scope="module")
def corpus():
  return made_corpora.corpus()


@pytest.fixture(scope="module")
def retriever(corpus):
  return Retriever(corpus)


@pytest.fixture(scope="module")
def queries():
  return made_corpora.queries(9)


def only_block(retriever: Retriever, queries: Queries, k: int, exclude=None) -> Block:
  (block,) = retriever.blocks(queries, k, 64, exclude)
  return block


# --- what a docstring says, a query at a time ---


def best(scores: np.ndarray, count: int) -> list[int]:
  """Positions of the largest, equal ones by number; rounded, as float32 knows no more digits."""
  return np.lexsort((np.arange(len(scores)), -np.round(scores, 6)))[:count].tolist()


class Definitions:
  """Scores `[L]` of a query by each source."""

  def __init__(self, corpus: Corpus, queries: Queries, exclude: np.ndarray, k: int):
    self.corpus, self.queries, self.exclude, self.k = corpus, queries, exclude, k
    self.truth = corpus.truth.toarray().astype(np.float64)
    self.points, self.unit = map(made_corpora.unit, (corpus.point_vectors, queries.vectors))
    lexicon = Lexicon(corpus.point_texts, corpus.label_texts)
    tables = [lexicon.vectors(texts) for texts in (corpus.point_texts, corpus.label_texts, queries.texts)]
    tables = made_corpora.few_columns(*tables)
    self.point_words, self.label_words, self.words = (table.toarray().astype(float) for table in tables)

  def __call__(self, name: str, row: int) -> np.ndarray:
    if name in VIEWS:
      return self._softmax(name, row)
    return getattr(self, f"_{name}")(row)

  def _softmax(self, name, row):
    vectors, query = self.corpus.label_vectors[name], self.queries.vectors[row]
    scores = vectors.astype(np.float64) @ query / self.corpus.temperature
    allowed = np.where(self.exclude[row], -np.inf, scores)
    similar = np.sort(allowed)[::-1][: self.k]
    return np.exp(np.minimum(scores, similar[0])) / np.exp(similar).sum()

  def _memory(self, row):
    cosines = self.points @ self.unit[row]
    near = best(cosines, 50)
    votes = np.maximum(cosines[near], 0) ** 8
    return votes @ self.truth[near] / votes.sum()

  def _lexical_memory(self, row):
    cosines = self.point_words @ self.words[row]
    near = best(cosines, 20)
    return cosines[near] @ self.truth[near] / cosines[near].sum()

  def _lexical_labels(self, row):
    return self.label_words @ self.words[row]

  def _memory_regression(self, row):
    by_vector, by_words = self.points @ self.unit[row], self.point_words @ self.words[row]
    near = {*best(by_vector, 64), *(point for point in best(by_words, 64) if by_words[point] > 0)}
    near = np.array(sorted(near))
    near = near[best((by_words + np.maximum(by_vector, 0) ** 2)[near], 64)]
    k = by_words[near] + np.maximum(by_vector[near], 0) ** 2
    gram = self.point_words[near] @ self.point_words[near].T
    gram += np.maximum(self.points[near] @ self.points[near].T, 0) ** 2
    return np.linalg.solve(gram + np.eye(len(near)), k) @ self.truth[near]


@pytest.mark.parametrize("excluding", [False, True])
@pytest.mark.parametrize("name", SOURCES)
def test_a_source_is_what_it_says(corpus, retriever, queries, name, excluding):
  exclude = made_corpora.pairs(np.random.default_rng(3), (9, 40), 0.3 * excluding)
  block = only_block(retriever, queries, 12, exclude.astype(bool) if excluding else None)
  out = exclude.toarray() > 0
  found, define = SOURCES[name](block), Definitions(corpus, queries, out, 12)
  assert found.ids.shape == (9, 12) and found.ids.dtype == np.int32
  every = np.tile(np.arange(40, dtype=np.int32), (9, 1))
  scores = found.scores_of(every)
  assert scores.dtype == np.float32
  for row in range(9):
    expected = define(name, row)
    allowed = ~out[row]
    np.testing.assert_allclose(scores[row, allowed], expected[allowed], atol=2e-5)
    ranked = [label for label in best(np.where(allowed, expected, -np.inf), 12) if allowed[label]]
    if name not in VIEWS:  # of the others only what has a score above 0 is found
      ranked = [label for label in ranked if expected[label] > 1e-6]
    assert found.ids[row].tolist() == ranked + [-1] * (12 - len(ranked))


def test_voters_are_the_training_queries_that_spoke(corpus, retriever, queries):
  block = only_block(retriever, queries, 12)
  for name, at_most in (("memory", 50), ("lexical_memory", 20), ("memory_regression", 64)):
    found = SOURCES[name](block)
    assert found.voters.ids.shape[1] <= at_most
    every = np.tile(np.arange(40), (9, 1))
    np.testing.assert_allclose(found.scores_of(every), found.voters.votes(corpus.truth).toarray(), atol=1e-6)
  for name in (*VIEWS, "lexical_labels"):
    assert SOURCES[name](block).voters is None


# --- the registry ---


def test_each_source_has_its_function_and_its_meaning():
  assert list(SOURCES) == ["encoder", "classifier", *configs.SOURCES]


def test_a_corpus_without_classifiers_has_one_source_less():
  retriever = Retriever(made_corpora.corpus(classifier=False))
  assert retriever.names == tuple(name for name in SOURCES if name != "classifier")


def test_log_frequency_counts_the_memory(corpus, retriever):
  expected = np.log(1 + (corpus.truth.toarray() > 0).sum(axis=0))
  np.testing.assert_allclose(retriever.log_frequency, expected, rtol=1e-6)
