"""Shortlists: nearest labels, true ones left out, never padded with a label."""

import numpy as np
import pytest
import scipy.sparse as sp

from xmc_jax import refresh
from xmc_jax.contract import ConfigError


def test_true_labels_are_left_out_and_short_rows_are_padded():
  rng = np.random.default_rng(0)
  queries, labels = rng.normal(size=(6, 4)).astype(np.float32), rng.normal(size=(9, 4)).astype(np.float32)
  truth = sp.csr_matrix(rng.random((6, 9)) < 0.5)
  found = refresh.shortlist(queries, labels, 7, exclude=truth)
  assert found.shape == (6, 7) and found.dtype == np.int32
  for row, ids in enumerate(found):
    left = [label for label in np.argsort(-(queries[row] @ labels.T)) if not truth[row, label]]
    assert ids.tolist() == (left + [-1] * 7)[:7]


def test_more_than_there_are_labels():
  found = refresh.shortlist(np.eye(2, 3, dtype=np.float32), np.eye(3, dtype=np.float32), 5)
  assert found.tolist() == [[0, 1, 2, -1, -1], [1, 0, 2, -1, -1]]


def test_an_unknown_backend_is_refused():
  with pytest.raises(ConfigError, match="'faiss' is not one of 'auto', 'exact'"):
    refresh.shortlist(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), 1, backend="faiss")
