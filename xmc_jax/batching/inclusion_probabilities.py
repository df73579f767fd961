"""Estimates the probability that a label is in a batch's pool, for sampled softmax's logQ correction.

Methods with sampled pools use it if `method.log_q` is set, as our addition (docs/formulas.md, "Label
frequency").
"""

import numpy as np


def log_inclusion_probabilities(
  label_counts: np.ndarray,
  num_points: int,
  num_rows: float,
  num_positives: int,
  num_others: float,
  pool_size: int = 0,
  fill_pool: bool = False,
) -> np.ndarray:
  r"""Estimates log q_l, where q_l is the probability that label l is in a batch's pool.

  .. math::
    q_l = \min\Bigl(1, d_l + s (a_l - d_l) + \frac{M}{L}\Bigr), \qquad
    a_l = 1 - \Bigl(1 - \frac{n_l}{N}\Bigr)^B, \qquad
    d_l = r \Bigl(1 - \Bigl(1 - p \frac{n_l}{N}\Bigr)^B\Bigr)

  A row of a batch has label l with probability n_l / N and then samples it with probability p, which is
  min(1, β N / Σ_k n_k) for β positives per row, or 1 if all are sampled. So a_l is the probability that some
  row has the label, and d_l that some row samples it; r is 1, or less if a pool holds fewer than are sampled.
  If other positives fill the pool, a fraction s of them fits in; else s is 0. M is at most what is left then.

  Three assumptions are approximate: rows are independent (points of a cluster are alike); every row has
  the mean number of labels, Σ_k n_k / N; and every pool has its mean amount of free room.

  Args:
    label_counts: `[L]` training points n_l of each label.
    num_points: N, the points that batches are sampled from.
    num_rows: B, rows of a batch, on average.
    num_positives: β, positives sampled for each row; 0 samples all that a row has.
    num_others: M, hard or random negatives of a batch, treated as uniform.
    pool_size: labels in a pool, at most; 0 is no limit.
    fill_pool: whether positives of the rows that were not sampled fill the room that is left.

  Returns:
    `[L]` float32, at most 0.

  Example:
    >>> log_inclusion_probabilities(np.array([3, 1]), 4, 2, 1, 0).round(2)  # 1 - (1/4)^2 and 1 - (3/4)^2
    array([-0.06, -0.83], dtype=float32)

  References:
    Bengio and Senécal, Adaptive importance sampling to accelerate training of a neural probabilistic
    language model, 2008; Yi et al., Sampling-bias-corrected neural modeling for large corpus item
    recommendations, RecSys 2019.
  """
  counts = np.asarray(label_counts, np.float64)
  of_row = np.minimum(counts / max(num_points, 1), 1)  # probability that a row has the label
  taken = min(1.0, num_positives / max(of_row.sum(), 1e-9)) if num_positives else 1.0
  probabilities = 1 - (1 - taken * of_row) ** num_rows
  if pool_size:
    probabilities *= min(1.0, pool_size / max(probabilities.sum(), 1e-9))
  if fill_pool:
    unsampled = np.maximum(1 - (1 - of_row) ** num_rows - probabilities, 0)
    probabilities += unsampled * min(
      1.0, max(pool_size - probabilities.sum(), 0) / max(unsampled.sum(), 1e-9)
    )
  others = min(num_others, pool_size - probabilities.sum()) if pool_size else num_others
  probabilities = np.clip(probabilities + max(others, 0) / len(counts), 1e-9, 1.0)
  return np.log(probabilities).astype(np.float32)
