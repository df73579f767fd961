"""How likely a label is to be in a batch's pool: what sampled softmax corrects for (logQ)."""

import numpy as np


def log_pool_odds(
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
    d_l = 1 - \Bigl(1 - p \frac{n_l}{N}\Bigr)^B

  A row of a batch has label l with probability n_l / N, and draws it then with p = min(1, β N / Σ_k n_k) for
  β positives a row, or 1 for all: d_l is the chance that a row draws it, a_l that a row has it. Where other
  positives of the rows fill a pool, a share s of those not drawn finds room; s is 0 otherwise. M is how many
  other labels a pool has.

  Three things are approximate: rows are taken for independent, though points of a leaf are alike; all labels
  of a row for equally many, on average Σ_k n_k / N; and room is shared out as if each pool held its mean.

  Args:
    label_counts: `[L]` training points n_l of each label.
    num_points: N, which batches are drawn from.
    num_rows: B, rows of a batch, on average.
    num_positives: β, drawn of each row; 0 is all that a row has.
    num_others: M, hard or random negatives of a batch, taken for uniform.
    pool_size: labels in a pool, at most; 0 is no limit.
    fill_pool: whether positives of the rows that were not drawn fill what room is left.

  Returns:
    `[L]` float32, at most 0.

  Example:
    >>> log_pool_odds(np.array([3, 1]), 4, 2, 1, 0).round(2)  # 1 - (1/4)^2 and 1 - (3/4)^2
    array([-0.06, -0.83], dtype=float32)

  References:
    Bengio and Senécal, Adaptive importance sampling to accelerate training of a neural probabilistic
    language model, 2008; Yi et al., Sampling-bias-corrected neural modeling for large corpus item
    recommendations, RecSys 2019.
  """
  counts = np.asarray(label_counts, np.float64)
  of_row = np.minimum(counts / max(num_points, 1), 1)  # that a row has it
  taken = min(1.0, num_positives / max(of_row.sum(), 1e-9)) if num_positives else 1.0
  odds = 1 - (1 - taken * of_row) ** num_rows
  if pool_size:
    odds *= min(1.0, pool_size / max(odds.sum(), 1e-9))
  if fill_pool:
    undrawn = np.maximum(1 - (1 - of_row) ** num_rows - odds, 0)
    odds += undrawn * min(1.0, max(pool_size - odds.sum(), 0) / max(undrawn.sum(), 1e-9))
  others = min(num_others, pool_size - odds.sum()) if pool_size else num_others
  odds = np.clip(odds + max(others, 0) / len(counts), 1e-9, 1.0)
  return np.log(odds).astype(np.float32)
