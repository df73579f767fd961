"""Label centroids: the mean over a label's points, by hand."""

import numpy as np
import scipy.sparse as sp

from xmc_jax import refresh


def test_the_mean_of_a_labels_points_or_its_text():
  points = np.array([[1.0, 0.0], [0.0, 2.0], [4.0, 4.0]], np.float32)
  truth = sp.csr_matrix(np.array([[0.5, 0, 1], [3.0, 0, 0], [0, 0, 0]], np.float32))  # values do not weigh
  texts = np.array([[9.0, 9], [7, 8], [9, 9]], np.float32)
  found = refresh.label_centroids(points, truth, lambda: texts)
  assert found.tolist() == [[0.5, 1.0], [7.0, 8.0], [1.0, 0.0]] and found.dtype == np.float32


def test_many_points_agree_with_a_loop():
  rng = np.random.default_rng(0)
  points, truth = rng.normal(size=(50, 4)).astype(np.float32), sp.csr_matrix(rng.random((50, 9)) < 0.2)
  texts = np.zeros((9, 4), np.float32)
  found = refresh.label_centroids(points, truth, lambda: texts)
  for label in range(9):
    rows = truth[:, [label]].nonzero()[0]
    np.testing.assert_allclose(found[label], points[rows].mean(0), atol=1e-6)
