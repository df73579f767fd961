"""Several encoders rank by a mean of their log-odds over the candidates of all: against float64 NumPy."""

import numpy as np
import pytest

from tests.retrieval import made_corpora
from xmc_jax.retrieval import hybrid_model
from xmc_jax.retrieval.combined import CombinedRetriever
from xmc_jax.retrieval.features import candidates, feature_names
from xmc_jax.retrieval.hybrid import HybridRanker, fit_model
from xmc_jax.retrieval.hybrid_model import HybridModel, fixed
from xmc_jax.retrieval.sources import Corpus, Queries, Retriever

L, K = 300, 20


@pytest.fixture(scope="module")
def corpora() -> dict[str, Corpus]:
  """Two encoders of the same texts, one with classifiers."""
  corpus, rng = made_corpora.corpus(L), np.random.default_rng(9)
  vectors = {"encoder": rng.normal(size=(L, 4)).astype(np.float32)}
  other = corpus._replace(
    label_vectors=vectors, point_vectors=rng.normal(size=(150, 4)).astype(np.float32), temperature=0.2
  )
  return {"a": corpus, "b": other}


@pytest.fixture(scope="module")
def each(corpora) -> dict[str, Retriever]:
  return {name: Retriever(corpus) for name, corpus in corpora.items()}


@pytest.fixture(scope="module")
def combined(corpora) -> CombinedRetriever:
  return CombinedRetriever(corpora.items())


@pytest.fixture(scope="module")
def queries() -> Queries:
  """70 queries: 64 of them are a block."""
  own = made_corpora.queries(70)
  return own._replace(vectors=np.concatenate([own.vectors, own.vectors[:, :4] ** 2], axis=1))


def of_each(queries: Queries) -> dict[str, Queries]:
  return {name: queries._replace(vectors=part) for name, part in zip("ab", np.split(queries.vectors, [6], 1))}


def model(each, *calibration: float) -> HybridModel:
  """Weights around those that were fitted on other data."""
  names, rng = [feature_names(one.names) for one in each.values()], np.random.default_rng(3)
  own, other = (HybridModel(few, fixed(few).linear + rng.normal(0, 0.1, len(few) + 1)) for few in names)
  return HybridModel(names[0], own.linear, calibration=calibration or (1.0, 1.0, 0.0), others=[other])


def test_labels_rank_by_the_mean_over_the_candidates_of_all(each, combined, queries):
  """Every label is a candidate here, so each encoder alone scores the same ones with the same ranks."""
  joined, log_odds = model(each), []
  joined.others[0].weight = 3.0
  for (name, own), one in zip(of_each(queries).items(), (joined, joined.others[0])):
    blocks = each[name].blocks(own, L, 64)
    found = [candidates(block, each[name].names, L) for block in blocks]
    ids, features = (
      np.concatenate([getattr(part, of)[part.ids >= 0] for part in found]) for of in ("ids", "features")
    )
    assert (ids.reshape(70, L) == np.arange(L)).all()
    features = features.reshape(70, L, -1).astype(np.float64)
    log_odds.append(features @ one.linear[:-1] + one.linear[-1])
  expected = 1 / (1 + np.exp(-(log_odds[0] + 3 * log_odds[1]) / 4))
  exclude = made_corpora.pairs(np.random.default_rng(2), (70, L), 0.1).astype(bool)
  found = HybridRanker(combined, joined).rank(queries, L)
  order = np.argsort(-expected, axis=1, kind="stable")
  np.testing.assert_allclose(found.scores, np.take_along_axis(expected, order, 1), rtol=1e-4)
  assert (found.ids[:, 0] == order[:, 0]).mean() > 0.98  # the rest are ties within rounding
  without = HybridRanker(combined, joined).rank(queries, K, exclude)
  assert not exclude.toarray()[np.arange(70)[:, None], without.ids].any()


def test_a_candidate_of_one_encoder_is_scored_by_all(each, combined, queries):
  (block, _), k = combined.blocks(queries, 5, 64), 5
  found = candidates(block, combined.names, k)
  names = {
    "classifier of a",
    *(f"{name} of {one}" for name in ("encoder", "memory", "memory_regression") for one in "ab"),
  }
  assert set(found.found) == names | {"lexical_memory", "lexical_labels"}
  assert found.features.shape[-1] == sum(len(feature_names(one.names)) for one in each.values())
  for row, ids in enumerate(found.ids):
    for one in found.found.values():
      assert set(one.ids[row]) <= {*ids, -1}


def test_encoders_alone_are_what_they_were(corpora, each, combined, queries):
  """Among others, and where a combination has one member."""
  for name, own in of_each(queries).items():
    weights = fixed(feature_names(each[name].names))
    expected = HybridRanker(each[name], weights).rank(own, K)
    for alone in (combined.by_encoder[name], CombinedRetriever([(name, corpora[name])])):
      found = HybridRanker(alone, weights).rank(own, K)
      np.testing.assert_array_equal(found.ids, expected.ids)
      np.testing.assert_array_equal(found.scores, expected.scores)


def test_reasons_name_the_encoder(combined, each, queries):
  ranker = HybridRanker(combined, model(each))
  best = ranker.rank(queries, 3).ids
  sources = {name for of_query in ranker.explain(queries, best) for why in of_query for name in why.sources}
  assert {"encoder of a", "encoder of b", "lexical_labels"} <= sources


def test_a_member_weighs_as_much_as_it_helps():
  """Log-odds of three: what is noise gets nothing, and no weight is negative."""
  rng = np.random.default_rng(6)
  truth = rng.normal(-3, 2, 20_000)
  right = rng.random(20_000) < 1 / (1 + np.exp(-truth))
  log_odds = np.stack([truth + rng.normal(0, 1, 20_000), truth + rng.normal(0, 2, 20_000), -truth], axis=1)
  found = hybrid_model._weights(log_odds, right)
  weights = made_corpora.regression(log_odds[:, :2], right, np.full(2, 1 / 3), 100)
  np.testing.assert_allclose(found, [*weights[:2] / weights[:2].sum(), 0], atol=1e-3)
  assert found[0] > 2 * found[1] > 0
  few = hybrid_model._weights(log_odds[:20], right[:20])
  np.testing.assert_allclose(few, 1 / 3, atol=0.1)  # too few rows to tell
  np.testing.assert_array_equal(hybrid_model._weights(log_odds[:, :1], right), [1.0])
  np.testing.assert_allclose(hybrid_model._weights(-log_odds[:, :2], right), 0.5)  # none helps


def test_the_mean_is_fitted_calibrated_and_stored(each, combined, queries, tmp_path):
  """Each part is the model that its own features give; its probabilities come from the mean."""
  rng = np.random.default_rng(4)
  ids = HybridRanker(combined, model(each)).rank(queries, 3).ids
  truth = made_corpora.pairs(rng, (70, L), 0.01).tolil()
  truth[np.arange(70), ids[:, 0]] = 1
  fitted = fit_model(combined, queries, truth.tocsr())
  assert fitted.has_trees and fitted.others[0].has_trees and fitted.num_rows > 50
  features = rng.normal(size=(200, len(fitted.features) + len(fitted.others[0].features))).astype(np.float32)
  fitted.save(tmp_path / "hybrid.json")
  again = HybridModel.load(tmp_path / "hybrid.json")
  np.testing.assert_array_equal(again.probabilities(features), fitted.probabilities(features))
