"""Inverse propensities: numbers worked by hand."""

import numpy as np
import pytest
import scipy.sparse

from xmc_jax import metrics


def test_hand_worked_numbers():
  # N = 100, n = (3, 1, 0), a = 1/2, b = 1: C = (ln 100 - 1) sqrt 2, and n + b = (4, 2, 1).
  entries = [1.0, 0.5, 9.0, 1.0, 0.0], ([0, 1, 2, 3, 4], [0, 0, 0, 1, 2])
  train = scipy.sparse.csr_array(entries, shape=(100, 3))
  scale = (np.log(100) - 1) * np.sqrt(2)
  expected = [1 + scale / 2, 1 + scale / np.sqrt(2), 1 + scale]
  np.testing.assert_allclose(metrics.inverse_propensity(train, 0.5, 1), expected, rtol=1e-12)


def test_no_training_rows_are_refused():
  with pytest.raises(ValueError, match="no rows"):
    metrics.inverse_propensity(scipy.sparse.csr_array((0, 3)), 0.55, 1.5)
