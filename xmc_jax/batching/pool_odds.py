"""How likely a label is to be in a batch's pool: what sampled softmax corrects for (logQ)."""

import numpy as np


def log_pool_odds(
  label_counts: np.ndarray, batch_size: int, num_positives: int, num_others: int, pool_size: int = 0
) -> np.ndarray:
  r"""Estimates log q_l, where q_l is the probability that label l is in a batch's pool.

  .. math::
    q_l = \min\Bigl(1, 1 - e^{-D f_l} + \frac{M}{L}\Bigr), \qquad f_l = \frac{n_l}{\sum_k n_k}

  D is how many positives a batch draws, M how many other labels its pool has; those are taken for uniform.

  Args:
    label_counts: `[L]` training points n_l of each label.
    batch_size: rows of a batch.
    num_positives: drawn of each row; 0 is about as many as a row has.
    num_others: hard or random negatives of a batch.
    pool_size: labels in a pool, at most; 0 is no limit.

  Returns:
    `[L]` float32, at most 0.

  Example:
    >>> log_pool_odds(np.array([3, 1]), 4, 1, 0).round(2)  # 1 - e^-3 and 1 - e^-1
    array([-0.05, -0.46], dtype=float32)

  References:
    Bengio and Senécal, Adaptive importance sampling to accelerate training of a neural probabilistic
    language model, 2008; Yi et al., Sampling-bias-corrected neural modeling for large corpus item
    recommendations, RecSys 2019.
  """
  counts = np.asarray(label_counts, np.float64)
  drawn = batch_size * max(num_positives, 1)
  odds = -np.expm1(-drawn * counts / max(counts.sum(), 1))
  others = min(num_others, pool_size - odds.sum()) if pool_size else num_others
  odds = np.clip(odds + max(others, 0) / len(counts), 1e-9, 1.0)
  return np.log(odds).astype(np.float32)
