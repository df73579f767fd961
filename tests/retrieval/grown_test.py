"""A retriever that remembers more rows ranks as one that had them at once, with the same weights of words."""

import numpy as np
import pytest

from tests.retrieval import made_corpora
from xmc_jax.retrieval import grown, lexical
from xmc_jax.retrieval.combined import CombinedRetriever
from xmc_jax.retrieval.features import feature_names
from xmc_jax.retrieval.hybrid import HybridRanker
from xmc_jax.retrieval.hybrid_model import fixed
from xmc_jax.retrieval.index import Index
from xmc_jax.retrieval.lexical import TextTable, Words
from xmc_jax.retrieval.sources import SOURCES, Queries, Retriever

L, N, K = 40, 150, 12
PARTS = [(0, 90), (90, 91), (91, 91), (91, 150)]  # the first is remembered from the start


@pytest.fixture(scope="module")
def corpus():
  return made_corpora.corpus(L, N)


@pytest.fixture(scope="module")
def queries() -> Queries:
  """Three of them are texts of the corpus."""
  own, corpus = made_corpora.queries(70), made_corpora.corpus(L, N)
  rows = [5, 90, 149]
  own.vectors[:3] = corpus.point_vectors[rows]
  return own._replace(texts=[*(corpus.point_texts[row] for row in rows), *own.texts[3:]])


def cut(corpus, start, end):
  rows = np.arange(start, end)
  texts = [corpus.point_texts[row] for row in rows]
  return corpus._replace(
    point_vectors=corpus.point_vectors[rows], truth=corpus.truth[rows], point_texts=texts
  )


def step_by_step(corpus, gone=()):
  """The rows of all parts, one part after the other; `gone` are forgotten with the last."""
  retriever = Retriever(cut(corpus, *PARTS[0]))
  for part in PARTS[1:]:
    rows = cut(corpus, *part)
    more = grown.Rows(rows.point_vectors, rows.point_texts, rows.truth)
    last = gone if part == PARTS[-1] else ()
    retriever = grown.with_rows(retriever, more, np.array(last, int))
  return retriever


def at_once(corpus, left):
  """An index of these rows, with the lexicon and the common words of the first part."""
  words = Words(cut(corpus, *PARTS[0]).point_texts, corpus.label_texts)
  texts = [corpus.point_texts[row] for row in left]
  words.points = TextTable(words.lexicon.vectors(texts), words.points.searched)
  own = corpus._replace(point_vectors=corpus.point_vectors[left], truth=corpus.truth[left], point_texts=texts)
  return Retriever(own, words=words)


def ranker(retriever):
  names, *others = (feature_names(one.names) for one in retriever.by_encoder.values())
  return HybridRanker(retriever, fixed(names, others))


@pytest.mark.parametrize("most_texts", [20_000, 8])
@pytest.mark.parametrize("gone", [(), (5,), (5, 90, 120, 149)])
def test_it_ranks_as_if_it_had_all_rows(corpus, queries, gone, most_texts, monkeypatch):
  """With 8, some words are too common to be searched for."""
  monkeypatch.setattr(lexical, "_MOST_TEXTS", most_texts)
  left = np.setdiff1d(np.arange(N), gone)
  found, wanted = ranker(step_by_step(corpus, gone)), ranker(at_once(corpus, left))
  for name in ("hybrid", *SOURCES):
    one, other = (
      ranking.rank(queries, K) if name == "hybrid" else ranking.rank_by(name, queries, K)
      for ranking in (found, wanted)
    )
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-5)
  ids = wanted.rank(queries, K).ids
  for one, other in zip(found.explain(queries, ids), wanted.explain(queries, ids)):
    assert [reason.sources for reason in one] == [reason.sources for reason in other]
    for mine, theirs in zip(one, other):
      texts = [
        [of.point_texts[row] for row, _ in reason.voters] for of, reason in ((found, mine), (wanted, theirs))
      ]
      assert texts[0] == texts[1]


def test_several_encoders_remember_together(corpus, queries):
  other = corpus._replace(point_vectors=corpus.point_vectors[:, ::-1] ** 2, temperature=0.2)
  first = {name: cut(one, 0, 90) for name, one in (("a", corpus), ("b", other))}
  rows = [cut(one, 90, N) for one in (corpus, other)]
  vectors = np.concatenate([one.point_vectors for one in rows], axis=1)
  own = CombinedRetriever(first.items())
  both = queries._replace(vectors=np.concatenate([queries.vectors] * 2, axis=1))
  before = ranker(own).rank(both, K)
  found = grown.with_rows(own, grown.Rows(vectors, rows[0].point_texts, rows[0].truth), np.array([7]))
  left = np.setdiff1d(np.arange(N), [7])
  wanted = CombinedRetriever((name, cut(one, 0, 0)) for name, one in (("a", corpus), ("b", other)))
  wanted._by_encoder = {name: at_once(one, left) for name, one in (("a", corpus), ("b", other))}
  vars(wanted).update(vars(wanted._by_encoder["a"]))
  one, other_one = ranker(found).rank(both, K), ranker(wanted).rank(both, K)
  np.testing.assert_array_equal(one.ids, other_one.ids)
  np.testing.assert_allclose(one.scores, other_one.scores, rtol=1e-5)
  assert (one.ids != before.ids).any()
  np.testing.assert_array_equal(ranker(own).rank(both, K).ids, before.ids)  # which stays as it was
  a, b = found.by_encoder.values()
  assert a.words is b.words and a.corpus.truth is b.corpus.truth


def test_a_retriever_without_points_learns_its_first(corpus, queries):
  none = Retriever(cut(corpus, 0, 0))
  found = grown.with_rows(
    none, grown.Rows(corpus.point_vectors, corpus.point_texts, corpus.truth), np.array([], int)
  )
  words = Words([], corpus.label_texts)
  words.points = TextTable(words.lexicon.vectors(corpus.point_texts))
  wanted = Retriever(corpus, words=words)
  np.testing.assert_array_equal(ranker(found).rank(queries, K).ids, ranker(wanted).rank(queries, K).ids)


@pytest.mark.parametrize("known", [True, False])
def test_new_labels_are_ranked_as_if_they_had_been_there(queries, known):
  """Also where pairs are excluded, or few may be answers; without vectors, by words and votes alone."""
  corpus = made_corpora.corpus(L, N)
  by = dict(corpus.label_vectors)
  by["classifier"][30:] = 0
  by["encoder"][30:] *= known
  few = {name: vectors[:30] for name, vectors in by.items()}
  first = cut(corpus, 0, 90)._replace(label_vectors=few, label_texts=corpus.label_texts[:30])
  own = Retriever(first._replace(truth=first.truth[:, :30]))
  before = ranker(own).rank(queries, K)
  more = own
  for start, end in ((30, 32), (32, 40)):  # the second is more than a tenth
    vectors = by["encoder"][start:end] if known else None
    more = grown.with_labels(more, {"": vectors}, corpus.label_texts[start:end])
  more = grown.with_rows(more, grown.Rows(*cut(corpus, 90, N)[1:4:2], corpus.truth[90:]), np.array([4]))
  truth = corpus.truth.tolil()
  truth[:90, 30:] = 0
  left = np.setdiff1d(np.arange(N), [4])
  texts = [corpus.point_texts[row] for row in left]
  words = Words(first.point_texts, first.label_texts)
  words.points, words.labels = (
    TextTable(words.lexicon.vectors(part)) for part in (texts, corpus.label_texts)
  )
  wanted = corpus._replace(truth=truth.tocsr()[left], point_vectors=corpus.point_vectors[left])
  wanted = Retriever(wanted._replace(point_texts=texts, label_vectors=by), words=words)
  exclude = made_corpora.pairs(np.random.default_rng(3), (len(queries.texts), L), 0.1)
  where = np.arange(L) % 3 > 0
  for asked in (queries, queries._replace(where=where)):
    one, other = (ranker(of).rank(asked, K, exclude) for of in (more, wanted))
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-4)
  assert (one.ids >= 30).any() and len(more.log_frequency) == L
  np.testing.assert_array_equal(ranker(own).rank(queries, K).ids, before.ids)


def test_many_rows_that_count_no_more_hide_no_others(monkeypatch):
  monkeypatch.setattr(grown, "_SPARE", 100)
  rng = np.random.default_rng(0)
  points = made_corpora.unit(1 + 0.1 * made_corpora.vectors(rng, 900)).astype(np.float32)
  index = lambda vectors: Index(vectors, backend="exact")
  near = grown.Nearest.of(index(points), points).grown(points[:0], np.arange(300), index)
  for more in (points[:0], points[:2]):
    near = near.grown(more, np.arange(300, 310), index)
    found = near.search(points[:5], 64)
    assert (found.ids >= 310).all()
    scores = points[:5] @ points[310:].T
    np.testing.assert_allclose(found.scores[:, 9], -np.sort(-scores, axis=1)[:, 9], rtol=0.05)


def test_a_row_that_is_not_finite_counts_as_zeros(corpus, queries):
  vectors = np.ones((1, corpus.point_vectors.shape[1]), np.float32)
  ranked = []
  for value in (np.nan, 0):
    vectors[0] = [value, *[1 if np.isnan(value) else 0] * 5]
    rows = grown.Rows(vectors, [corpus.point_texts[3]], corpus.truth[:1])
    ranked.append(ranker(grown.with_rows(Retriever(corpus), rows, np.array([], int))).rank(queries, K))
  np.testing.assert_array_equal(ranked[0].ids, ranked[1].ids)
  np.testing.assert_array_equal(ranked[0].scores, ranked[1].scores)


def test_the_search_is_deepened_in_few_steps(corpus, monkeypatch):
  """Each depth is compiled or tuned anew: rows that count no more change it seldom, and new ones never."""
  retriever, depths = Retriever(corpus), []
  search = retriever.nearest.search
  monkeypatch.setattr(grown, "_MOST_NEW", 1.0)
  monkeypatch.setattr(retriever.nearest, "search", lambda q, k, exclude: depths.append(k) or search(q, k))
  for number in range(70):
    rows = grown.Rows(corpus.point_vectors[:1], ["x"], corpus.truth[:1])
    retriever = grown.with_rows(retriever, rows, np.array([number, N + number - 1] if number else [0]))
    assert retriever.nearest.search(corpus.point_vectors[:2], 3).ids.shape == (2, 3)
  assert set(depths) == {3 + 64, 3 + 128}
