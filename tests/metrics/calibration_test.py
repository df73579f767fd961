"""Calibration against numbers worked by hand, and against a plain loop."""

import numpy as np
import pytest

from xmc_jax import metrics
from xmc_jax.metrics import calibration as module


def test_by_hand():
  """(0, ¼] has 0, 0.1 and 0.25, one of them right; (¼, ½] nothing; (½, ¾] 0.6; (¾, 1] 0.9 and 1."""
  found = metrics.reliability(
    [0.9, 0.1, 0.6, 0.0, 1.0, 0.25], [True, False, False, False, True, True], num_bins=4
  )
  assert [one[:3] for one in found.bins] == [(0, 0.25, 3), (0.5, 0.75, 1), (0.75, 1, 2)]
  np.testing.assert_allclose([one.share for one in found.bins], [1 / 2, 1 / 6, 1 / 3])
  np.testing.assert_allclose([one.predicted for one in found.bins], [0.35 / 3, 0.6, 0.95])
  np.testing.assert_allclose([one.right for one in found.bins], [1 / 3, 0, 1])
  # 3/6 · (1/3 - 0.35/3) + 1/6 · 0.6 + 2/6 · 0.05
  assert found.ece == pytest.approx(0.65 / 6 + 0.1 + 0.1 / 6)


@pytest.mark.parametrize("block", [1, 7, 1 << 22])
def test_against_a_loop(monkeypatch, block):
  rng = np.random.default_rng(0)
  probabilities = rng.random(200).astype(np.float32) ** 3
  right = rng.random(200) < probabilities**2
  monkeypatch.setattr(module, "_BLOCK", block)
  found, expected = metrics.reliability(probabilities, right, num_bins=10), 0.0
  for number in range(10):
    values = probabilities.astype(np.float64)
    inside = (values > number / 10) & (values <= (number + 1) / 10)
    if inside.any():
      expected += inside.mean() * abs(right[inside].mean() - values[inside].mean())
  assert found.ece == pytest.approx(expected, abs=1e-12)
  assert sum(one.pairs for one in found.bins) == 200
  assert sum(one.share for one in found.bins) == pytest.approx(1)


def test_nothing_is_no_error():
  assert metrics.reliability([], []) == (0.0, [], 0.0)


def test_the_error_by_chance_is_that_of_exact_probabilities():
  rng = np.random.default_rng(0)
  probabilities = rng.random(300)
  errors = [metrics.reliability(probabilities, rng.random(300) < probabilities).ece for _ in range(200)]
  expected = metrics.reliability(probabilities, probabilities > 0.5).by_chance
  assert np.mean(errors) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("value", [1.5, -0.1, np.nan])
def test_what_is_no_probability_is_refused(value):
  with pytest.raises(ValueError, match="expected 0 to 1"):
    metrics.reliability([0.5, value], [True, False])
