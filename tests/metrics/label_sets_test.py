"""Sets of labels by expected F1, against all outcomes."""

import itertools

import numpy as np
import pytest

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
