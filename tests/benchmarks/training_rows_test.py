"""Checks `best_possible` against hand-worked numbers."""

import numpy as np
import pytest
import scipy.sparse as sp

from benchmarks.training_rows import best_possible


def test_best_possible():
  truth = sp.csr_matrix(np.repeat([[1, 0, 0], [0, 0, 0], [1, 1, 1]], 4, axis=1))  # 4, 0 and 12 labels
  found = best_possible(truth)
  expected = {"P@1": 2 / 3, "P@5": (4 / 5 + 1) / 3, "R@10": (1 + 10 / 12) / 2, "R@100": 1.0}
  assert {name: found[name] for name in expected} == pytest.approx(expected)
