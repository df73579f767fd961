"""Computes propensities: how likely a true label is to have been observed."""

import numpy as np

from xmc_jax.metrics.hits import Sparse, as_truth


def inverse_propensity(truth_train: Sparse, a: float, b: float) -> np.ndarray:
  r"""Computes the inverse propensity of every label, from its frequency in the training set.

  .. math::
    1/p_l = 1 + C \, (n_l + b)^{-a}, \qquad C = (\ln N - 1)(b + 1)^a

  with n_l the number of training points that carry label l. Customary (a, b):
  (0.6, 2.6) for Amazon sets, (0.5, 0.4) for Wikipedia and WikiTitles,
  (0.55, 1.5) for everything else.

  Args:
    truth_train: sparse `[N, L]` training labels; any stored non-zero counts as 1.
    a: the exponent.
    b: the offset.

  Returns:
    `[L]` float64, larger for rarer labels.

  Example:
    >>> import scipy.sparse
    >>> inverse_propensity(scipy.sparse.csr_array([[1, 0], [1, 0], [1, 1]]), 0.55, 1.5)
    array([1.07..., 1.0986...])

  References:
    Jain et al., Extreme Multi-label Loss Functions for Recommendation, Tagging,
    Ranking & Other Missing Label Applications, KDD 2016. docs/formulas.md, "Propensity".
  """
  truth = as_truth(truth_train)
  num_points = truth.counts.size
  if num_points == 0:
    raise ValueError("truth_train has no rows, so it says nothing about propensities")
  frequency = np.bincount(truth.labels, minlength=truth.num_labels)
  scale = (np.log(num_points) - 1) * (b + 1) ** a
  return 1 + scale * (frequency + b) ** -float(a)
