"""Our measures beside Annif's own, which are float32, of the same suggestions."""

import numpy as np
import pytest
import scipy.sparse

from xmc_jax import metrics

annif = pytest.importorskip("annif.eval")


@pytest.fixture(scope="module", params=[0, 1, 2])
def documents(request):
  """40 documents, 30 subjects, five suggestions each; the last three documents have no subject."""
  rng = np.random.default_rng(request.param)
  truth = rng.random((40, 30)) < 0.1
  truth[-3:] = False
  truth[np.arange(37), rng.integers(30, size=37)] = True
  scores = rng.random((40, 30)) + truth * rng.random((40, 30))
  return truth, np.argsort(-scores, axis=1)[:, :5], scores / 2


def by_annif(truth, scores):
  batch = annif.EvaluationBatch(subject_index=range(truth.shape[1]))
  gold = [np.flatnonzero(of_text).tolist() for of_text in truth]
  batch.evaluate_many(annif.SuggestionBatch(scipy.sparse.csr_array(scores)), gold)
  return batch.results()


def test_rankings(documents):
  """Of a document without subjects Annif's nDCG is 1, and ours 0."""
  truth, ids, scores = documents
  given = np.zeros_like(scores)
  np.put_along_axis(given, ids, np.take_along_axis(scores, ids, 1), 1)
  expected = by_annif(truth, given)
  found = metrics.evaluate(ids, scipy.sparse.csr_array(truth), ks=(1, 3, 5))
  for k in (1, 3, 5):
    assert found[f"P@{k}"] == pytest.approx(expected[f"Precision@{k}"], rel=1e-6)
  assert found["F1@5"] == pytest.approx(expected["F1@5"], rel=1e-6)
  assert found["nDCG@5"] + 3 / 40 == pytest.approx(expected["NDCG@5"], rel=1e-6)


def test_sets(documents):
  """Annif's mean over subjects counts those that nobody gave and no document has, as 0."""
  truth, ids, _ = documents
  sets = np.where(np.arange(5) < np.arange(40)[:, None] % 6, ids, -1)  # of no label to five
  given = np.zeros((40, 31))
  np.put_along_axis(given, sets, 1.0, 1)  # -1 is the column too many
  expected = by_annif(truth, given[:, :30])
  found = metrics.score_sets(sets, scipy.sparse.csr_array(truth))
  right, num_given, num_true = found.num_right.sum(), found.num_given.sum(), found.num_true.sum()
  counts = [right, num_given - right, num_true - right]
  assert counts == [expected[f"{kind} positives"] for kind in ("True", "False")] + [
    expected["False negatives"]
  ]
  assert found.sample_f1 == pytest.approx(expected["F1 score (doc avg)"], rel=1e-6)
  assert found.micro_f1 == pytest.approx(expected["F1 score (microavg)"], rel=1e-6)
  occur = np.count_nonzero(found.num_given + found.num_true)
  assert found.macro_f1 * occur / 30 == pytest.approx(expected["F1 score (subj avg)"], rel=1e-6)
