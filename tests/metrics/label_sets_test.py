"""Sets of labels by expected F1, against all outcomes."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.metrics import f1_score

from xmc_jax import metrics


def expected_f1(probabilities, chosen):
  """The mean F1 of a set over all 2^k outcomes, in float64."""
  total = 0.0
  for right in itertools.product([0, 1], repeat=len(probabilities)):
    chance = np.prod([p if r else 1 - p for p, r in zip(probabilities, right)])
    hits = sum(right[label] for label in chosen)
    total += chance * 2 * hits / (len(chosen) + sum(right))
  return total


@pytest.mark.parametrize("seed", range(8))
def test_no_set_of_labels_has_a_better_expected_f1(seed):
  rng = np.random.default_rng(seed)
  probabilities = np.sort(rng.random((2, 6)) ** rng.choice([0.5, 1, 4]), axis=1)[:, ::-1]
  for row, size in zip(probabilities, metrics.best_f1_sizes(probabilities)):
    sets = [chosen for n in range(1, 7) for chosen in itertools.combinations(range(6), n)]
    best = max(expected_f1(row, chosen) for chosen in sets)
    assert expected_f1(row, range(size)) == pytest.approx(best, abs=1e-12)


def test_padding_counts_as_wrong_and_many_texts_as_one():
  rng = np.random.default_rng(0)
  probabilities = np.sort(rng.random((600, 9)), axis=1)[:, ::-1]
  padded = np.concatenate([probabilities, np.full((600, 3), -np.inf)], axis=1)
  sizes = metrics.best_f1_sizes(padded)
  np.testing.assert_array_equal(sizes, metrics.best_f1_sizes(probabilities))
  assert [metrics.best_f1_sizes(row[None])[0] for row in probabilities[::50]] == sizes[::50].tolist()
  assert metrics.best_f1_sizes(np.zeros((2, 4))).tolist() == [1, 1]
  assert metrics.best_f1_sizes(np.zeros((0, 4))).tolist() == []


@pytest.mark.parametrize("seed", range(5))
def test_scores_of_sets_equal_scikit_learns(seed):
  """Macro-F1 is over labels that occur, as others would only count the size of the label space."""
  rng = np.random.default_rng(seed)
  truth, given = rng.random((20, 30)) < 0.06, rng.random((20, 30)) < 0.06
  ids = np.full((20, 30), -1)
  for row, labels in enumerate(given):
    ids[row, : labels.sum()] = rng.permutation(np.flatnonzero(labels))
  found = metrics.score_sets(ids, sp.csr_array(truth))
  seen = np.flatnonzero((truth | given).any(axis=0))
  f1 = lambda average, labels=None: f1_score(truth, given, average=average, labels=labels, zero_division=0)
  assert found.sample_f1 == pytest.approx(f1("samples"))
  assert found.micro_f1 == pytest.approx(f1("micro")) and found.macro_f1 == pytest.approx(f1("macro", seen))
  assert found.mean_size == given.sum(axis=1).mean()
  for values, expected in zip(found, (given, truth, truth & given)):
    np.testing.assert_array_equal(values, expected.sum(axis=0))


def test_scores_of_nothing_are_0():
  found = metrics.score_sets(np.full((2, 3), -1), sp.csr_array((2, 4)))
  assert (found.sample_f1, found.micro_f1, found.macro_f1, found.mean_size) == (0, 0, 0, 0)


def test_labels_given_in_place_of_others():
  """Rows miss {0, 1}, {1}, {}, {3}, {4}; they are wrongly given {2, 3}, {2}, {4}, {}, {3}."""
  truth = sp.csr_array(
    [[1, 1, 0, 0, 0], [1, 0.5, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
  )
  ids = np.array([[3, 2, -1], [2, -1, 0], [4, 0, -1], [-1, -1, -1], [-1, 3, -1]])
  pairs = [[1, 2, 2], [0, 2, 1], [0, 3, 1], [1, 3, 1], [4, 3, 1]]
  assert metrics.confusions(ids, truth).tolist() == pairs
  assert metrics.confusions(ids, truth, most=2).tolist() == pairs[:2]
  assert metrics.confusions(np.full((5, 0), -1), truth).shape == (0, 3)
