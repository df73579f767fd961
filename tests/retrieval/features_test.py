"""Candidates and what the model is told of them, against definitions a label at a time."""

import made_corpora
import numpy as np
import pytest

from xmc_jax.retrieval import features
from xmc_jax.retrieval.features import candidates, feature_names
from xmc_jax.retrieval.sources import SOURCES, Found, Retriever

L, N = 40, 6


@pytest.fixture(scope="module")
def retriever():
  return Retriever(made_corpora.corpus(L))


@pytest.fixture
def block(retriever):
  (block,) = retriever.blocks(made_corpora.queries(N), 8, 64)
  return block


def test_names_of_features():
  assert feature_names(["memory", "encoder"]) == [
    *("memory.score", "memory.log_score", "memory.log_rank"),
    *("encoder.score", "encoder.log_score", "encoder.log_rank"),
    *("log_frequency", "num_agreeing", "nearest_cosine", "nearest_word_cosine"),
  ]


@pytest.mark.parametrize("sources", [tuple(SOURCES), ("lexical_memory", "encoder"), ("memory",)])
def test_features_are_what_their_names_say(retriever, block, sources):
  found = candidates(block, sources, 8)
  assert found.features.shape == (*found.ids.shape, len(feature_names(sources)))
  assert found.features.dtype == np.float32 and found.ids.dtype == np.int32
  by_name = dict(zip(feature_names(sources), np.moveaxis(found.features, -1, 0)))
  for row in range(N):
    labels = [label for label in found.ids[row].tolist() if label >= 0]
    asked = np.array([labels] * N)
    expected = {"log_frequency": retriever.log_frequency[labels], "num_agreeing": np.zeros(len(labels))}
    for name in sources:
      scores = SOURCES[name](block).scores_of(asked)[row].astype(np.float64)
      order = sorted(range(len(labels)), key=lambda place: (-scores[place], labels[place]))
      ranks = np.argsort(order)
      expected[f"{name}.score"] = scores
      expected[f"{name}.log_score"] = np.log(np.maximum(scores, 0) + 1e-4)
      expected[f"{name}.log_rank"] = np.log(1 + ranks)
      expected["num_agreeing"] += (ranks < 10) & (scores > 0)
    expected["nearest_cosine"] = np.full(len(labels), block.near.scores[row, 0])
    expected["nearest_word_cosine"] = np.full(len(labels), block.of_words.near.scores[row, 0])
    real = found.ids[row] >= 0
    assert expected.keys() == by_name.keys()
    for name, values in expected.items():
      np.testing.assert_allclose(by_name[name][row, real], values, atol=1e-5, err_msg=name)


def test_the_nearest_cosines(retriever):
  """Of a query that is a training query: 1; of one that is far from all: 0, not below."""
  corpus = retriever.corpus
  vectors = np.stack([retriever.points[3], np.zeros(made_corpora.DIM, np.float32)])
  queries = made_corpora.queries(2)._replace(vectors=vectors, texts=[corpus.point_texts[3], "unheard"])
  found = candidates(retriever.blocks(queries, 8, 64)[0], retriever.names, 8)
  np.testing.assert_allclose(found.features[0, :, -2:], 1, atol=1e-6)
  assert not found.features[1, :, -2:].any()


def test_candidates_are_the_best_of_all_sources_once_and_rising(block):
  found = candidates(block, tuple(SOURCES), 8)
  for row in range(N):
    labels = [label for label in found.ids[row].tolist() if label >= 0]
    every = {label for one in found.found.values() for label in one.ids[row].tolist()} - {-1}
    assert labels == sorted(every)


def test_those_with_the_best_reciprocal_ranks_are_kept(block, monkeypatch):
  every = candidates(block, tuple(SOURCES), 8)
  monkeypatch.setattr(features, "_KEPT", 7)
  for k, kept in ((4, 7), (6, 9)):
    found = candidates(block, tuple(SOURCES), k)
    assert found.ids.shape[1] == kept
    for row in range(N):
      ranks = np.expm1(every.features[row, :, 2 : 3 * len(SOURCES) : 3].astype(np.float64))
      sums = {
        label: (1 / (10 + np.round(of_label))).sum()
        for label, of_label in zip(every.ids[row].tolist(), ranks)
        if label >= 0
      }
      best = sorted(sums, key=lambda label: (-round(sums[label], 12), label))[:kept]
      assert sorted(best) == [label for label in found.ids[row].tolist() if label >= 0]
      # What is told of them is as among all candidates.
      places = [every.ids[row].tolist().index(label) for label in found.ids[row].tolist()]
      np.testing.assert_array_equal(found.features[row], every.features[row, places])


def test_a_source_that_forgets_excluded_pairs_brings_none(retriever, monkeypatch):
  every = np.tile(np.arange(L, dtype=np.int32), (N, 1))
  forgetful = lambda _: Found(every, lambda ids: np.ones(ids.shape, np.float32))
  monkeypatch.setitem(SOURCES, "memory", forgetful)
  exclude = made_corpora.pairs(np.random.default_rng(2), (N, L), 0.5).astype(bool)
  (block,) = retriever.blocks(made_corpora.queries(N), 20, 64, exclude)
  ids = candidates(block, ("memory",), 20).ids
  for row, out in enumerate(exclude.toarray()):
    assert set(ids[row][ids[row] >= 0].tolist()) == set(np.flatnonzero(~out).tolist())
