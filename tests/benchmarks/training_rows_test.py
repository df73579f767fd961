"""Checks `best_possible` against hand-worked numbers."""

import numpy as np
import pytest
import scipy.sparse as sp

from benchmarks.training_rows import best_possible


def test_best_possible():
  truth = sp.csr_matrix(np.repeat([[1, 0, 0], [0, 0, 0], [1, 1, 1]], 4, axis=1))  # 4, 0 and 12 labels
  found = best_possible(truth)
  assert found == pytest.approx({"P@1": 1.0, "P@5": (4 / 5 + 1) / 2, "R@10": (1 + 10 / 12) / 2, "R@100": 1.0})
