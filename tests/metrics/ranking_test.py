"""P, nDCG, R, PSP, PSnDCG, coverage, LRAP, propensities: hand-worked numbers, then by references."""

import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse
from sklearn.metrics import label_ranking_average_precision_score

from xmc_jax import metrics

# Three rows, five labels: hits at ranks 1 and 3 of row 0 and at rank 2 of row 1;
# row 2 has no labels.
IDS = np.array([[2, 1, 0], [0, 4, -1], [1, 2, 3]], np.int32)
TRUTH = scipy.sparse.csr_array([[1, 0, 1, 0, 0], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0]])
INVERSE_PROPENSITY = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
LOG3 = 1 / np.log2(3)  # the discount of rank 2; that of rank 3 is 1 / log2(4) = 1/2


def discount(rank):
  return 1 / math.log2(rank + 1)


def reference(predictions, truths, ks, inverse_propensity):
  """Every metric by its definition, one prediction at a time: a list of ids and a set of true ids per row."""
  out = {}
  for k in ks:
    precision = ndcg = recall = labelled = f1 = 0.0
    gain = best_gain = discounted = best_discounted = 0.0
    for ranked, true in zip(predictions, truths):
      hits = [(rank, label) for rank, label in enumerate(ranked[:k], 1) if label in true]
      ideal = sum(discount(rank) for rank in range(1, min(k, len(true)) + 1))
      rarest_first = sorted((inverse_propensity[label] for label in true), reverse=True)[:k]
      precision += len(hits) / k
      f1 += 2 * len(hits) / (k + len(true))
      gain += sum(inverse_propensity[label] for _, label in hits)
      best_gain += sum(rarest_first)
      if true:
        labelled += 1
        recall += len(hits) / len(true)
        ndcg += sum(discount(rank) for rank, _ in hits) / ideal
        discounted += sum(discount(rank) * inverse_propensity[label] for rank, label in hits) / ideal
        best_discounted += sum(discount(rank) * q for rank, q in enumerate(rarest_first, 1)) / ideal
    rows = len(truths)
    out[f"P@{k}"] = precision / rows
    out[f"nDCG@{k}"] = ndcg / rows
    out[f"F1@{k}"] = f1 / rows
    out[f"R@{k}"] = recall / labelled if labelled else 0.0
    out[f"PSP@{k}"] = gain / best_gain if best_gain else 0.0
    out[f"PSnDCG@{k}"] = discounted / best_discounted if best_discounted else 0.0
  return out


def test_hand_worked_numbers():
  got = metrics.evaluate(IDS, TRUTH, ks=(1, 3), inverse_propensity=INVERSE_PROPENSITY)
  expected = {
    "P@1": 1 / 3,  # one of three first places
    "nDCG@1": 1 / 3,
    "R@1": (1 / 2 + 0 / 3) / 2,  # row 2 has nothing to recall and is skipped
    "F1@1": 2 / (1 + 2) / 3,
    "PSP@1": 3 / (3 + 5),  # obtained: label 2; obtainable: labels 2 and 4
    "PSnDCG@1": 3 / (3 + 5),
    "P@3": (2 + 1 + 0) / (3 * 3),
    "nDCG@3": ((1 + 1 / 2) / (1 + LOG3) + LOG3 / (1 + LOG3 + 1 / 2)) / 3,
    "R@3": (2 / 2 + 1 / 3) / 2,
    "F1@3": (4 / (3 + 2) + 2 / (3 + 3)) / 3,
    "PSP@3": (3 + 1 + 5) / ((3 + 1) + (5 + 4 + 2)),
    "PSnDCG@3": ((3 + 1 / 2) / (1 + LOG3) + 5 * LOG3 / (1.5 + LOG3))
    / ((3 + LOG3) / (1 + LOG3) + (5 + 4 * LOG3 + 2 / 2) / (1.5 + LOG3)),
  }
  assert list(got) == list(expected)
  for name, value in expected.items():
    assert type(got[name]) is float
    assert got[name] == pytest.approx(value, rel=1e-12), name


@hypothesis.given(
  st.integers(0, 2**31), st.integers(1, 6), st.integers(1, 7), st.integers(1, 7), st.sampled_from([0, 0.4, 1])
)
def test_equals_the_definitions(seed, num_rows, num_labels, depth, share):
  """Of predictions with holes; some rows of both are empty."""
  rng = np.random.default_rng(seed)
  truth = rng.random((num_rows, num_labels)) < share
  ids = rng.permuted(np.tile(np.arange(num_labels), (num_rows, 1)), axis=1)
  ids = np.pad(ids, ((0, 0), (0, depth)), constant_values=-1)[:, :depth]
  ids[rng.random(ids.shape) < 0.3] = -1
  matrix, truths = scipy.sparse.csr_array(truth), [set(np.flatnonzero(row).tolist()) for row in truth]
  inverse_propensity = 1 + np.arange(matrix.shape[1]) % 3  # with equal ones among them
  got = metrics.evaluate(ids, matrix, ks=(1, 2, 5), inverse_propensity=inverse_propensity)
  expected = reference(ids.tolist(), truths, (1, 2, 5), inverse_propensity)
  assert got == pytest.approx(expected, rel=1e-12)


def test_without_propensities_there_are_no_propensity_scores():
  names = [f"{name}@{k}" for k in (1, 3, 5) for name in ("P", "nDCG", "R", "F1")]
  assert list(metrics.evaluate(IDS, TRUTH)) == names


def test_any_stored_relevance_counts_as_one_and_a_stored_zero_as_none():
  graded = scipy.sparse.csr_matrix(
    ([0.5, 7.0, 0.0, 0.25, 0.25], ([0, 0, 1, 1, 1], [0, 2, 0, 1, 1])), shape=(2, 3)
  )
  before = graded.copy()
  got = metrics.evaluate([[0, 2], [0, 1]], graded, ks=(2,))
  assert got["P@2"] == 3 / 4
  assert got["R@2"] == 1.0
  assert (graded != before).nnz == 0 and graded.nnz == before.nnz  # and the caller's matrix is left alone


@pytest.mark.parametrize("form", ["csr_matrix", "csc_array", "coo_matrix"])
def test_truth_in_any_sparse_form(form):
  assert metrics.evaluate(IDS, getattr(scipy.sparse, form)(TRUTH)) == metrics.evaluate(IDS, TRUTH)


def test_the_order_of_the_columns_in_storage_does_not_matter():
  shuffled = scipy.sparse.csr_matrix(([1, 1], [2, 0], [0, 2]), shape=(1, 3))
  got = metrics.evaluate([[0]], shuffled, ks=(1,), inverse_propensity=[1.0, 1.0, 4.0])
  assert got["P@1"] == 1.0
  assert got["PSP@1"] == 1 / 4


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_nothing_predicted_or_nothing_to_predict_is_zero(shape):
  truth = scipy.sparse.csr_array((shape[0], 5))
  got = metrics.evaluate(np.zeros(shape, int), truth, inverse_propensity=np.ones(5))
  assert set(got.values()) == {0.0}


@pytest.mark.parametrize(
  "ids, message",
  [
    ([[0, 5, -1], [1, 2, -1], [0, 1, 2]], "names label 5, truth has 5 labels"),
    ([[0, 1, 2], [3, -1, 3], [0, 1, 2]], "label 3 twice in row 1"),
    ([[0, 1, 2]], "ids has 1 rows, truth has 3"),
    ([0, 1, 2], "must be .N, K. integers"),
    ([[0.0], [1.0], [2.0]], "must be .N, K. integers"),
  ],
)
def test_what_is_no_ranking_is_refused(ids, message):
  with pytest.raises(ValueError, match=message):
    metrics.evaluate(ids, TRUTH)


def test_bad_cut_offs_and_propensities_are_refused():
  with pytest.raises(ValueError, match="at least 1, got"):
    metrics.evaluate(IDS, TRUTH, ks=(0, 1))
  with pytest.raises(ValueError, match=r"must be \[5\], got \(4,\)"):
    metrics.evaluate(IDS, TRUTH, inverse_propensity=np.ones(4))


def test_rows_without_labels_are_counted():
  assert metrics.num_rows_without_labels(TRUTH) == 1
  assert metrics.num_rows_without_labels(scipy.sparse.csr_array(([0.0], ([0], [0])), shape=(1, 1))) == 1


def test_coverage_counts_each_label_once():
  # All five labels are true somewhere. Found at rank 1: label 2; within rank 3: 2, 0, 4.
  assert metrics.coverage(IDS, TRUTH, ks=(1, 3)) == {"coverage@1": 1 / 5, "coverage@3": 3 / 5}
  # Label 0 is found twice and label 2 is carried by nobody.
  twice = scipy.sparse.csr_array([[1, 1, 0], [1, 0, 0]])
  assert metrics.coverage([[0], [0]], twice, ks=(1,)) == {"coverage@1": 1 / 2}


def scored(seed):
  """True labels [40, 20], scores of which about half are 0, and the ids of the others, best first."""
  rng = np.random.default_rng(seed)
  truth, scores = rng.random((40, 20)) < 0.1, rng.random((40, 20)) * (rng.random((40, 20)) < 0.5)
  order = np.argsort(-scores, axis=1)
  return truth, scores, np.where(np.take_along_axis(scores, order, axis=1) > 0, order, -1)


@pytest.mark.parametrize("seed", range(5))
def test_lrap_is_scikit_learns_over_rows_with_labels(seed):
  truth, scores, ids = scored(seed)
  truth[0], truth[1] = False, True
  labelled = truth.any(axis=1)
  expected = label_ranking_average_precision_score(truth[labelled], scores[labelled])
  assert metrics.lrap(ids, scipy.sparse.csr_array(truth)) == pytest.approx(expected, rel=1e-12)
  of_all = label_ranking_average_precision_score(truth, scores)  # rows without labels count as 1
  assert expected * labelled.mean() + (~labelled).mean() == pytest.approx(of_all)


def test_lrap_by_hand():
  # Row 0: label 2 at rank 1, label 0 at rank 3. Row 1: label 4 at rank 2; 1 and 3 tie at rank 5.
  assert metrics.lrap(IDS, TRUTH) == pytest.approx(((1 + 2 / 3) / 2 + (1 / 2 + 2 * 3 / 5) / 3) / 2)
  assert metrics.lrap(np.zeros((3, 0), int), TRUTH) == pytest.approx((2 / 5 + 3 / 5) / 2)
  assert metrics.lrap(IDS, scipy.sparse.csr_array((3, 5))) == 0


def test_hand_worked_propensities():
  # N = 100, n = (3, 1, 0), a = 1/2, b = 1: C = (ln 100 - 1) sqrt 2, and n + b = (4, 2, 1).
  entries = [1.0, 0.5, 9.0, 1.0, 0.0], ([0, 1, 2, 3, 4], [0, 0, 0, 1, 2])
  train = scipy.sparse.csr_array(entries, shape=(100, 3))
  scale = (np.log(100) - 1) * np.sqrt(2)
  expected = [1 + scale / 2, 1 + scale / np.sqrt(2), 1 + scale]
  np.testing.assert_allclose(metrics.inverse_propensity(train, 0.5, 1), expected, rtol=1e-12)


def test_propensities_of_no_training_rows_are_refused():
  with pytest.raises(ValueError, match="no rows"):
    metrics.inverse_propensity(scipy.sparse.csr_array((0, 3)), 0.55, 1.5)
