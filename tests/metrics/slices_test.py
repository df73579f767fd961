"""Splits by training frequency, and parts that add up to the whole."""

import numpy as np
import pytest
import scipy.sparse

from xmc_jax import metrics


def random_case(num_rows=60, num_labels=37, depth=8):
  rng = np.random.default_rng(0)
  truth = scipy.sparse.random_array((num_rows, num_labels), density=0.1, format="csr", rng=rng)
  ids = np.argsort(rng.random((num_rows, num_labels)), axis=1)[:, :depth]
  return ids, truth, rng.integers(0, 300, num_labels)


def test_hand_worked_contributions():
  # Hits: label 0 at rank 1 of row 0, label 1 at rank 2 of row 1. Groups: {0}, {1, 2}.
  truth = scipy.sparse.csr_array([[1, 0, 1], [0, 1, 0]])
  got = metrics.contributions([[0, 1], [2, 1]], truth, [0, 1, 1], ks=(2,))
  np.testing.assert_allclose(got["P@2"], [1 / 4, 1 / 4])
  np.testing.assert_allclose(got["R@2"], [1 / 2 / 2, 1 / 2])


def test_contributions_add_up_to_the_metric():
  ids, truth, train_counts = random_case()
  inverse_propensity = np.linspace(1, 5, truth.shape[1])
  deciles = metrics.frequency_deciles(train_counts)
  kwargs = {"ks": (1, 5, 20), "inverse_propensity": inverse_propensity}
  whole = metrics.evaluate(ids, truth, **kwargs)
  parts = metrics.contributions(ids, truth, deciles, **kwargs)
  assert list(parts) == list(whole)
  for name, part in parts.items():
    assert part.shape == (10,)
    assert part.sum() == pytest.approx(whole[name], rel=1e-12), name


def test_deciles_of_equal_numbers_of_labels():
  counts = np.arange(23)  # label 22 is the most frequent
  deciles = metrics.frequency_deciles(counts)
  np.testing.assert_array_equal(deciles[::-1], np.arange(23) * 10 // 23)
  sizes = np.bincount(deciles)
  assert len(sizes) == 10 and sizes.max() - sizes.min() <= 1


def test_equal_frequencies_stand_in_the_order_of_their_ids():
  np.testing.assert_array_equal(metrics.frequency_deciles([7] * 20), np.arange(20) // 2)
  np.testing.assert_array_equal(metrics.frequency_deciles(np.zeros(4)), [0, 2, 5, 7])


def test_frequency_groups_bounds():
  np.testing.assert_array_equal(
    metrics.frequency_groups([0, 1, 2, 5, 6, 20, 21, 5000]), [0, 1, 2, 2, 3, 3, 4, 4]
  )


def test_head_torso_tail_bounds():
  np.testing.assert_array_equal(metrics.head_torso_tail([0, 9, 10, 100, 101, 5000]), [2, 2, 1, 1, 0, 0])


def test_groups_of_other_labels_are_refused():
  ids, truth, _ = random_case()
  with pytest.raises(ValueError, match=r"groups must be \[37\], got \(5,\)"):
    metrics.contributions(ids, truth, np.zeros(5, int))
