"""The hybrid ranking: what it orders by, k, blocks of queries, and reasons, against brute force."""

import made_corpora
import numpy as np
import pytest
import scipy.sparse as sp

from xmc_jax.retrieval import hybrid, hybrid_model, sources
from xmc_jax.retrieval.features import candidates, feature_names
from xmc_jax.retrieval.hybrid import HybridRanker, fit_model, like_test_time
from xmc_jax.retrieval.hybrid_model import HybridModel, fixed
from xmc_jax.retrieval.sources import SOURCES, Queries, Retriever

L = 40
NAMES = feature_names(list(SOURCES))


@pytest.fixture(scope="module")
def retriever():
  return Retriever(made_corpora.corpus(L))


@pytest.fixture(scope="module")
def ranker(retriever):
  return HybridRanker(retriever, fixed(NAMES))


def ranked_by(ids, scores, k: int) -> tuple[list[int], list[float]]:
  """By score, equal ones by rising id; padded."""
  pairs = sorted((-score, label) for label, score in zip(ids.tolist(), scores.tolist()) if label >= 0)[:k]
  missing = k - len(pairs)
  return [label for _, label in pairs] + [-1] * missing, [-score for score, _ in pairs] + [-np.inf] * missing


def test_labels_are_ranked_by_the_models_probability(retriever, ranker):
  queries = made_corpora.queries(9)
  found = ranker.rank(queries, 12)
  assert found.ids.dtype == np.int32 and found.scores.dtype == np.float32
  (block,) = retriever.blocks(queries, L, 64)
  made = candidates(block, retriever.names, L)
  model = fixed(NAMES)
  for row in range(9):
    ids, scores = ranked_by(made.ids[row], model.probabilities(made.features[row]), 12)
    assert found.ids[row].tolist() == ids
    np.testing.assert_allclose(found.scores[row], scores, atol=1e-6)


def test_equal_probabilities_stand_by_rising_id(retriever):
  same = HybridRanker(retriever, HybridModel(NAMES, np.zeros(len(NAMES) + 1)))
  found = same.rank(made_corpora.queries(5), L)
  assert found.ids.tolist() == [list(range(L))] * 5 and (found.scores == 0.5).all()


def test_five_of_many_labels_are_a_prefix_of_fifty():
  """There sources find only a part of all labels."""
  ranker = HybridRanker(Retriever(made_corpora.corpus(400, 300)), fixed(NAMES))
  queries = made_corpora.queries(20)
  few, more = ranker.rank(queries, 5), ranker.rank(queries, 50)
  np.testing.assert_array_equal(few.ids, more.ids[:, :5])
  np.testing.assert_array_equal(few.scores, more.scores[:, :5])
  assert (more.ids >= 0).all() and all(len(set(row)) == 50 for row in more.ids.tolist())
  assert ranker.rank(queries, 160).ids.min() >= 0  # more than are kept as a rule


@pytest.mark.parametrize("count", [0, 1, 64, 130])
def test_blocks_have_no_borders(ranker, count):
  """Each query is ranked as it is alone."""
  queries = made_corpora.queries(count)
  found, by_source = ranker.rank_with_sources(queries, 7)
  assert found.ids.shape == found.scores.shape == (count, 7)
  assert by_source.keys() == SOURCES.keys()
  assert all(one.ids.shape == one.scores.shape == (count, 7) for one in by_source.values())
  for row in {0, 31, count // 2, count - 2, count - 1} & set(range(count)):
    alone, parts = ranker.rank_with_sources(Queries(queries.vectors[[row]], [queries.texts[row]]), 7)
    for one, other in [(found, alone), *((by_source[name], parts[name]) for name in SOURCES)]:
      assert one.ids[row].tolist() == other.ids[0].tolist()
      np.testing.assert_allclose(one.scores[row], other.scores[0], rtol=1e-4, atol=1e-6)


def test_sources_are_ranked_alone_too(retriever, ranker):
  queries = made_corpora.queries(9)
  joined, alone = ranker.rank_with_sources(queries, 12)
  np.testing.assert_array_equal(joined.ids, ranker.rank(queries, 12).ids)
  (block,) = retriever.blocks(queries, L, 64)
  for name, source in SOURCES.items():
    found = source(block)
    np.testing.assert_array_equal(alone[name].ids, found.ids[:, :12])
    scores = np.where(found.ids >= 0, found.scores_of(found.ids), -np.inf)[:, :12]
    np.testing.assert_allclose(alone[name].scores, scores, atol=1e-6, err_msg=name)


# --- excluded pairs ---


@pytest.mark.parametrize("share", [0.0, 0.1, 0.6, 0.95, 1.0])
def test_excluded_pairs_are_nowhere_and_rows_stay_full(ranker, share):
  exclude = made_corpora.pairs(np.random.default_rng(4), (70, L), share).astype(bool)
  out = exclude.toarray()
  found, alone = ranker.rank_with_sources(made_corpora.queries(70), 10, exclude)
  for row in range(70):
    left = set(np.flatnonzero(~out[row]).tolist())
    for name, ids in [("hybrid", found.ids[row]), *((name, one.ids[row]) for name, one in alone.items())]:
      labels = [label for label in ids.tolist() if label >= 0]
      assert set(labels) <= left and len(set(labels)) == len(labels), name
      if name in ("hybrid", "encoder", "classifier"):
        assert len(labels) == min(10, len(left)), name
      assert ids.tolist()[len(labels) :] == [-1] * (10 - len(labels))
  assert (np.isneginf(found.scores) == (found.ids < 0)).all()


# --- fitting ---


def test_the_model_is_fitted_on_candidates_of_all_queries(monkeypatch):
  """Not on those that are in no source's list, excluded, padding or unlike what is there at test time."""
  retriever = Retriever(made_corpora.corpus(L, 20))  # some labels are in no training query
  queries = made_corpora.queries(70)
  truth = made_corpora.pairs(np.random.default_rng(1), (70, L), 0.1)
  exclude = made_corpora.pairs(np.random.default_rng(2), (70, L), 0.2).astype(bool)
  seen = {}
  monkeypatch.setattr(hybrid, "fit", lambda names, *arrays: seen.update(names=names, arrays=arrays))
  fit_model(retriever, queries, truth, exclude)
  features, right, rows, others = seen["arrays"]
  assert seen["names"] == NAMES and not others and features.dtype == np.float32
  (block,) = retriever.blocks(queries, L, 100, exclude)
  made = candidates(block, retriever.names, L)
  labels, queries_alike = like_test_time(retriever, truth)
  alike = labels[made.ids] & queries_alike[:, None]
  assert 0 < alike.sum() < alike.size
  real = (made.ids >= 0) & alike
  np.testing.assert_array_equal(rows, np.nonzero(real)[0])
  np.testing.assert_allclose(features, made.features[real], atol=1e-5)
  expected = np.take_along_axis(truth.toarray() > 0, np.maximum(made.ids, 0), axis=1)[real]
  np.testing.assert_array_equal(right, expected)


@pytest.mark.parametrize("num_nowhere", [0, 2, 4])
def test_labels_that_held_out_queries_alone_carry_are_not_as_at_test_time(num_nowhere):
  """Label 0 is in the memory, 1 to 3 are not; for each that is nowhere at all one of these stands."""
  num_labels = 4 + num_nowhere
  carried = np.zeros((5, num_labels), np.float32)
  carried[:, 0] = 1
  retriever = Retriever(made_corpora.corpus(num_labels, 5)._replace(truth=sp.csr_matrix(carried)))
  held_out = np.zeros((4, num_labels), np.float32)
  held_out[[0, 0, 1, 1, 3], [0, 1, 1, 2, 3]] = 1
  labels, queries = like_test_time(retriever, sp.csr_matrix(held_out))
  assert labels[0] and labels[4:].all() and labels[1:4].sum() == min(3, num_nowhere)
  assert queries.tolist() == [True, bool(labels[1] or labels[2]), True, bool(labels[3])]


def test_a_fitted_ranker_prefers_what_was_right(monkeypatch):
  """Labels of the training query that each query is a copy of: the memory knows, the encoder does not."""
  monkeypatch.setattr(hybrid_model, "FEWEST_ROWS", 50)
  monkeypatch.setattr(hybrid_model, "_NUM_TREES", 10)
  corpus = made_corpora.corpus(L, 300)
  retriever, rows = Retriever(corpus), np.arange(0, 300, 3)
  noise = np.random.default_rng(0).normal(size=(100, made_corpora.DIM)).astype(np.float32)
  queries = Queries(corpus.point_vectors[rows] + 0.1 * noise, [corpus.point_texts[row] for row in rows])
  model = fit_model(retriever, queries, corpus.truth[rows])
  assert model.num_rows == 100
  found = HybridRanker(retriever, model).rank(queries, 1)
  alone = HybridRanker(retriever, model).rank_with_sources(queries, 1)[1]["encoder"]
  truth = corpus.truth.toarray()[rows] > 0
  hits = [truth[np.arange(100), one.ids[:, 0]][truth.any(axis=1)].mean() for one in (found, alone)]
  assert hits[0] > 0.95 > 0.5 > hits[1]


def test_no_query_to_fit_on_gives_fixed_weights(retriever):
  model = fit_model(retriever, made_corpora.queries(0), sp.csr_matrix((0, L)))
  assert model.num_rows == 0 and model.features == NAMES


# --- reasons ---


@pytest.mark.parametrize("count", [0, 1, 65])
def test_reasons_are_those_of_the_sources(retriever, ranker, count):
  """Ranks are among the labels that are left, as in the ranking that is explained."""
  queries = made_corpora.queries(count)
  exclude = made_corpora.pairs(np.random.default_rng(8), (count, L), 0.3)
  ids = ranker.rank(queries, 4, exclude).ids.copy()
  ids[::3, 2:] = -1
  reasons = ranker.explain(queries, ids, exclude)
  assert [len(of_row) for of_row in reasons] == (ids >= 0).sum(axis=1).tolist()
  assert all(len(of_row) >= 2 for of_row in reasons)
  alone = ranker.rank_with_sources(queries, 10, exclude)[1]
  truth = retriever.corpus.truth.toarray() > 0
  for row, of_row in enumerate(reasons):
    for label, reason in zip(ids[row].tolist(), of_row):
      ranks = {name: one.ids[row].tolist() for name, one in alone.items()}
      assert reason.sources == {name: of.index(label) + 1 for name, of in ranks.items() if label in of}
      assert all(truth[point, label] and weight > 0 for point, weight in reason.voters)


@pytest.mark.parametrize("few_out", [0, 400])
@pytest.mark.parametrize("share", [0.97, 0.5, 0.05, 0.01])
def test_a_filter_leaves_labels_out_before_candidates_are_cut(share, few_out, monkeypatch):
  """The labels that stay keep their order and, where they were candidates, their probability."""
  monkeypatch.setattr(sources, "_FEW_OUT", few_out)
  ranker = HybridRanker(Retriever(made_corpora.corpus(400, 300)), fixed(NAMES))
  queries, where = made_corpora.queries(20), np.random.default_rng(0).random(400) < share
  every, some = ranker.rank(queries, 400), ranker.rank(queries._replace(where=where), 400)
  assert where[some.ids[some.ids >= 0]].all()
  assert ((some.ids >= 0).sum(axis=1) >= min(where.sum(), 100)).all()
  for row in range(20):
    before = dict(zip(every.ids[row].tolist(), every.scores[row].tolist()))
    pairs = [(label, score) for label, score in zip(some.ids[row].tolist(), some.scores[row]) if label >= 0]
    likely = [label for label in every.ids[row, :20].tolist() if where[label]]
    assert [label for label, _ in pairs[: len(likely)]] == likely
    np.testing.assert_allclose(
      [score for _, score in pairs[: len(likely)]], [before[x] for x in likely], rtol=0.02
    )


@pytest.mark.parametrize("name", SOURCES)
def test_a_filter_holds_for_a_source_alone(retriever, ranker, name):
  queries, where = made_corpora.queries(9), np.arange(L) % 5 == 0
  every = ranker.rank_by(name, queries, L)
  some = ranker.rank_by(name, queries._replace(where=where), L)
  for row in range(9):
    expected = [label for label in every.ids[row].tolist() if label >= 0 and where[label]]
    assert [label for label in some.ids[row].tolist() if label >= 0] == expected


@pytest.mark.parametrize("few_out", [0, 400])
def test_labels_that_no_source_has_among_its_best_are_answers_where_others_may_not(few_out, monkeypatch):
  monkeypatch.setattr(sources, "_FEW_OUT", few_out)
  monkeypatch.setattr(hybrid, "_DEPTH", 10)
  ranker = HybridRanker(Retriever(made_corpora.corpus(400, 300)), fixed(NAMES))
  query = made_corpora.queries(1)
  found = ranker.rank(query, 10).ids[0]
  (block,) = ranker._retriever.blocks(query, 10, 64)
  near = {*found.tolist(), *(label for source in SOURCES.values() for label in source(block).ids[0].tolist())}
  where = ~np.isin(np.arange(400), list(near))
  some = ranker.rank(query._replace(where=where), 10).ids[0]
  assert (some >= 0).all() and where[some].all()
