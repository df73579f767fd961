"""Bootstrap intervals and paired differences: by hand, against a loop, and where there is no difference."""

import numpy as np
import pytest
import scipy.sparse
import scipy.stats

from xmc_jax import metrics
from xmc_jax.metrics import intervals

L = 40


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


# --- paired differences ---


def _case(num_rows, seed, better=0.0):
  """A truth and two noisy rankings of it, the second of which sees it more sharply by `better`."""
  rng = np.random.default_rng(seed)
  truth = (rng.random((num_rows, L)) < 0.1).astype(float)
  shared = rng.normal(size=(num_rows, L))
  rankings = [
    np.argsort(-(truth * (0.8 + sharper) + shared + rng.normal(size=(num_rows, L))), axis=1)[:, :10]
    for sharper in (0.0, better)
  ]
  return rankings, scipy.sparse.csr_array(truth)


def test_values_are_those_of_evaluate():
  rankings, truth = _case(200, 0, better=0.5)
  kwargs = {"ks": (1, 5, 10), "inverse_propensity": np.linspace(1, 5, L)}
  first, second = (metrics.evaluate(ids, truth, **kwargs) for ids in rankings)
  (found,) = metrics.paired_differences(rankings, truth, num_resamples=200, **kwargs)
  assert list(found) == list(first)
  for name, difference in found.items():
    assert difference.value == pytest.approx(second[name] - first[name])
    assert difference.low <= difference.value <= difference.high
    assert 0 < difference.p_value <= 1


def test_several_rankings_are_each_held_against_the_first():
  rankings, truth = _case(150, 1, better=0.5)
  one, two = metrics.paired_differences([*rankings, rankings[0][:, :5]], truth, num_resamples=100)
  assert one == metrics.paired_differences(rankings, truth, num_resamples=100)[0]
  assert two["P@5"] == (0.0, 0.0, 0.0, 1.0)  # of the same first five


def test_the_same_as_a_loop_for_ratios():
  rankings, truth = _case(60, 3, better=0.4)
  inverse = np.linspace(1, 9, L)
  (found,) = metrics.paired_differences(
    rankings, truth, ks=(3,), inverse_propensity=inverse, num_resamples=300
  )
  rng, drawn = np.random.default_rng(0), []
  for chosen in rng.integers(60, size=(300, 60)):  # the draws of seed 0
    values = [
      metrics.evaluate(ids[chosen], truth[chosen], ks=(3,), inverse_propensity=inverse) for ids in rankings
    ]
    drawn.append(values[1]["PSP@3"] - values[0]["PSP@3"])
  difference, drawn = found["PSP@3"], np.array(drawn)
  assert (difference.low, difference.high) == pytest.approx(tuple(np.quantile(drawn, (0.025, 0.975))))
  as_far = np.sum(np.abs(drawn - difference.value) >= abs(difference.value))
  assert difference.p_value == pytest.approx((1 + as_far) / 301)


def test_p_values_are_uniform_where_there_is_no_difference():
  found = [
    metrics.paired_differences(rankings, truth, ks=(10,), num_resamples=300)[0]["nDCG@10"].p_value
    for rankings, truth in (_case(100, seed) for seed in range(400))
  ]
  assert scipy.stats.kstest(found, "uniform").pvalue > 0.01
  # Of 400 at the level 0.05, 20 are expected; 36 are more than 3.5 standard deviations off.
  assert 6 <= np.sum(np.array(found) < 0.05) <= 36


@pytest.mark.parametrize("num_rows", [0, 1])
def test_nothing_to_gain_is_no_difference(num_rows):
  ids = np.zeros((num_rows, 1), int)
  truth = scipy.sparse.csr_array((num_rows, 3))
  (found,) = metrics.paired_differences([ids, ids], truth, num_resamples=10, inverse_propensity=np.ones(3))
  assert set(found.values()) == {(0.0, 0.0, 0.0, 1.0)}


def test_holm_by_hand():
  np.testing.assert_allclose(metrics.holm([0.01, 0.04, 0.03]), [0.03, 0.06, 0.06])
  np.testing.assert_allclose(metrics.holm([0.5, 0.02]), [0.5, 0.04])
  np.testing.assert_allclose(metrics.holm([0.7, 0.8]), [1.0, 1.0])
  np.testing.assert_allclose(metrics.holm([0.2]), [0.2])
  assert metrics.holm([]).shape == (0,)
