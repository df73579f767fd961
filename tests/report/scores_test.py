"""Scores of single pairs are those of the ranking; curves and shares are those of plain loops."""

import numpy as np
import pytest
import scipy.sparse as sp

from xmc_jax.metrics.hits import as_truth, find_hits
from xmc_jax.report import scores
from xmc_jax.retrieval.search import Ranking
from xmc_jax.runs import evaluate


@pytest.mark.parametrize(
  ("which", "kind"),
  [("plain_run", "fused"), *(("fused_run", kind) for kind in ("fused", "encoder", "classifier"))],
)
def test_pairs_score_as_they_are_ranked(request, which, kind):
  made = request.getfixturevalue(which)
  rank = made.trained.ranker(kind)
  ranking = evaluate.rank_split(made.run, rank, made.queries, made.run.dataset.test)
  rows, ranks = np.nonzero(ranking.ids >= 0)
  ids = ranking.ids[rows, ranks].astype(np.int64)
  some, places = np.unique(ids, return_inverse=True)
  every = scores.score_labels(made.trained, kind, made.queries, some)
  np.testing.assert_allclose(every[rows, places], ranking.scores[rows, ranks], rtol=1e-4, atol=1e-5)


def test_nearness_of_labels_knows_no_label_frequency(plain_run):
  trained, labels = plain_run.trained, np.arange(5)
  dim = plain_run.queries.shape[1]
  cosines = scores.label_cosines(trained, dim, labels, labels[::-1])
  texts = trained.run.embedder.texts(trained.params, trained.extra_state, trained.run.dataset.labels.tokens)
  vectors = np.asarray(texts)[:5, :dim]
  vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
  expected = np.sum(vectors * vectors[::-1], axis=1)
  np.testing.assert_allclose(cosines, expected, rtol=1e-5)


def _case(num_rows=40, num_labels=30, depth=8):
  rng = np.random.default_rng(0)
  truth = sp.csr_matrix((rng.random((num_rows, num_labels)) < 0.15).astype(np.float32))
  every = rng.normal(size=(num_rows, num_labels)).astype(np.float32) + truth.toarray()
  ids = np.argsort(-every, axis=1)[:, :depth].astype(np.int32)
  return Ranking(ids, np.take_along_axis(every, ids.astype(np.int64), axis=1)), truth


def test_precision_and_recall_of_every_threshold():
  ranking, truth = _case()
  hits = find_hits(ranking.ids, as_truth(truth))
  precision, recall = scores.precision_recall(ranking, hits, truth.nnz)
  true = truth.toarray()[np.arange(40)[:, None], ranking.ids] > 0
  expected = {}
  for threshold in np.unique(ranking.scores):
    above = ranking.scores >= threshold
    expected[round(true[above].sum() / truth.nnz, 9), round(true[above].mean(), 9)] = above.sum()
  for point in zip(recall.round(9), precision.round(9)):
    assert expected[point] >= 20
  assert recall[-1] == pytest.approx(len(hits.rows) / truth.nnz)
  assert np.all(np.diff(recall) >= 0) and len(recall) > 10


def test_what_a_number_and_a_threshold_keep():
  ranking, truth = _case()
  ranking = Ranking(ranking.ids, 1 / (1 + np.exp(-ranking.scores)))
  ranking.ids[:3, 5:], ranking.scores[:3, 5:] = -1, -np.inf
  hits = find_hits(ranking.ids, as_truth(truth))
  by_number, cuts = (scores.cuts(ranking, hits, truth.nnz, are_probabilities=are) for are in (False, True))
  true = (truth.toarray()[np.arange(40)[:, None], ranking.ids] > 0) & (ranking.ids >= 0)
  kept = [np.arange(8) < k for k in (1, 3, 5)]
  by_percent = [100 * ranking.scores >= percent for percent in range(101)]
  f1 = [2 * true[part].sum() / (part.sum() + truth.nnz) for part in by_percent]
  kept += [by_percent[50], by_percent[int(np.argmax(f1))]]
  assert cuts[f"at least {np.argmax(f1)} %, the best F1"][3] == pytest.approx(max(f1))
  assert list(cuts.items())[:3] == list(by_number.items())
  for numbers, part in zip(cuts.values(), kept, strict=True):
    part = part & (ranking.ids >= 0)
    precision, recall = true[part].mean(), true[part].sum() / truth.nnz
    f1 = 2 * precision * recall / (precision + recall)
    assert numbers == pytest.approx((part.sum() / 40, precision, recall, f1))


def test_many_points_are_sampled(monkeypatch):
  ranking, truth = _case(400)
  hits = find_hits(ranking.ids, as_truth(truth))
  exact = scores.precision_recall(ranking, hits, truth.nnz)
  monkeypatch.setattr(scores, "_CURVE_ROWS", 200)
  sampled = scores.precision_recall(ranking, hits, truth.nnz)
  assert sampled[1][-1] == pytest.approx(exact[1][-1], abs=0.05)
  at = np.interp([0.2, 0.4], exact[1], exact[0]), np.interp([0.2, 0.4], sampled[1], sampled[0])
  np.testing.assert_allclose(*at, atol=0.08)


def test_nothing_found_is_no_curve():
  ranking, truth = _case()
  hits = find_hits(ranking.ids, as_truth(truth * 0))
  assert [len(part) for part in scores.precision_recall(ranking, hits, truth.nnz)] == [0, 0]


def test_a_sample_is_small_and_has_every_true_label_of_its_points():
  rng = np.random.default_rng(0)
  truth = sp.csr_matrix(sp.random_array((9000, 500), density=0.004, format="csr", rng=rng).astype(np.float32))
  ranking = Ranking(np.full((9000, 1), -1), np.full((9000, 1), -np.inf))
  hits = find_hits(ranking.ids, as_truth(truth))
  asked = []
  score = lambda *pairs: asked.append(pairs) or np.zeros(tuple(map(len, pairs)))
  found = scores.sample(ranking, hits, truth, truth * 0, score)
  ((rows, labels),) = asked
  assert len(rows) <= 2000 and 1500 < len(found.true) <= 2000 and len(labels) <= 500
  assert np.all(np.diff(rows) > 0) and len(found.true) == truth[rows].nnz
  assert set(truth[rows].indices) <= set(labels) and len(found.random) <= 128 * len(rows)


def test_one_point_with_more_labels_than_a_sample_has():
  truth = sp.csr_matrix(np.ones((1, 5000), np.float32))
  ranking = Ranking(np.zeros((1, 1), int), np.ones((1, 1)))
  found = scores.sample(ranking, find_hits(ranking.ids, as_truth(truth)), truth, truth * 0)
  assert found.rows.tolist() == [0] and len(found.true) == 1 and found.above_wrong == 1 / 5000


@pytest.mark.parametrize("by_vectors", [True, False])
def test_a_sample_by_loops(by_vectors):
  ranking, truth = _case()
  filtered = sp.random_array(truth.shape, density=0.1, format="csr", rng=np.random.default_rng(1))
  filtered = sp.csr_matrix(filtered - filtered.multiply(truth))
  every = np.random.default_rng(2).normal(size=truth.shape)
  np.put_along_axis(every, ranking.ids.astype(int), ranking.scores, axis=1)
  excluded = filtered.toarray()[np.arange(40)[:, None], ranking.ids] > 0  # no filtered label is ranked
  ranking.ids[excluded], ranking.scores[excluded] = -1, -np.inf
  score = lambda rows, labels: every[rows][:, labels]
  hits = find_hits(ranking.ids, as_truth(truth))
  found = scores.sample(ranking, hits, truth, filtered, score if by_vectors else None)
  true, wrong, above, beaten = [], [], [], []
  for row in found.rows:
    ranked = {label: score for label, score in zip(*(part[row].tolist() for part in ranking)) if label >= 0}
    known = {*truth[row].nonzero()[1], *filtered[row].nonzero()[1]}
    wrong += [score for label, score in ranked.items() if label not in known][:1]
    first = max((score for label, score in ranked.items() if label not in known), default=-np.inf)
    for label in truth[row].indices:
      own = every[row, label] if by_vectors else ranked.get(label)
      true += [] if own is None else [own]
      beaten.append(own is not None and own > first)
      above += [own > every[row, other] for other in range(30) if by_vectors and other not in known]
  np.testing.assert_allclose(found.true, true)
  np.testing.assert_allclose(found.best_wrong, wrong)
  assert found.above_wrong == pytest.approx(np.mean(beaten)) and 0 < found.above_wrong < 1
  if by_vectors:
    assert found.above_random == pytest.approx(np.mean(above))  # of 30 labels all are drawn
  else:
    assert found.above_random is None and not len(found.random) and len(found.true) < truth.nnz
