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
