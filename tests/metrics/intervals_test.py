"""Bootstrap intervals: where they lie, how wide they are, and that they repeat."""

import numpy as np
import pytest
import scipy.sparse

from xmc_jax import metrics
from xmc_jax.metrics import intervals


def random_case(num_rows):
  rng = np.random.default_rng(0)
  truth = scipy.sparse.random_array((num_rows, 30), density=0.1, format="csr", rng=rng)
  return np.argsort(rng.random((num_rows, 30)), axis=1)[:, :10], truth


def test_every_metric_lies_in_its_interval():
  ids, truth = random_case(300)
  kwargs = {"ks": (1, 3, 10), "inverse_propensity": np.linspace(1, 4, 30)}
  points = metrics.evaluate(ids, truth, **kwargs)
  found = metrics.bootstrap_intervals(ids, truth, num_resamples=300, **kwargs)
  assert list(found) == list(points)
  for name, (low, high) in found.items():
    assert 0 <= low < points[name] < high <= 1, name


def test_equal_seeds_give_equal_intervals_whatever_the_block():
  ids, truth = random_case(50)
  once = metrics.bootstrap_intervals(ids, truth, num_resamples=40, seed=3)
  assert metrics.bootstrap_intervals(ids, truth, num_resamples=40, seed=3) == once
  assert metrics.bootstrap_intervals(ids, truth, num_resamples=40, seed=4) != once
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(intervals, "_BLOCK_DRAWS", 7 * 50)
    blockwise = metrics.bootstrap_intervals(ids, truth, num_resamples=40, seed=3)
  for name, bounds in blockwise.items():
    assert bounds == pytest.approx(once[name])


def test_width_is_that_of_a_binomial():
  # P@1 is a mean of 400 coin flips of 1/4: standard error sqrt(.25 * .75 / 400) = 0.02165.
  truth = scipy.sparse.csr_array(np.ones((400, 1)))
  ids = np.where(np.arange(400) % 4 == 0, 0, -1)[:, None]
  low, high = metrics.bootstrap_intervals(ids, truth, ks=(1,), num_resamples=2000)["P@1"]
  assert (high - low) / 2 == pytest.approx(1.96 * 0.02165, rel=0.1)


def test_ratios_are_resampled_as_ratios():
  # Each row obtains half of what it could, so PSP is 1/2 in every draw, though rows differ tenfold.
  truth = scipy.sparse.csr_array([[1, 1, 0, 0], [0, 0, 1, 1]])
  got = metrics.bootstrap_intervals(
    [[0, -1], [2, -1]], truth, ks=(2,), inverse_propensity=[1.0, 1.0, 10.0, 10.0], num_resamples=50
  )
  assert got["PSP@2"] == pytest.approx((0.5, 0.5))


def test_no_rows_and_no_labels_give_zero():
  for ids in (np.zeros((0, 3), int), np.array([[0], [1]])):
    truth = scipy.sparse.csr_array((len(ids), 4))
    assert set(metrics.bootstrap_intervals(ids, truth, num_resamples=5).values()) == {(0.0, 0.0)}
