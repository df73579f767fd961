"""How likely a label is to be in a batch's pool: what sampled softmax corrects for (logQ)."""

import numpy as np


def log_pool_odds(
  label_counts: np.ndarray, num_drawn: float, num_others: float, pool_size: int = 0, num_filling: float = 0.0
) -> np.ndarray:
  r"""Estimates log q_l, where q_l is the probability that label l is in a batch's pool.

  .. math::
    q_l = \min\Bigl(1, 1 - e^{-D f_l} + \frac{M}{L}\Bigr), \qquad f_l = \frac{n_l}{\sum_k n_k}

  D is how many positives a batch draws, M how many other labels its pool has; those are taken for uniform.
  Where the rows' other positives fill a pool, q_l lies between this for D and for all of their F positives,
  1 - e^{-F f_l}, by the share of these labels that there is room for.

  Args:
    label_counts: `[L]` training points n_l of each label.
    num_drawn: D.
    num_others: M, hard or random negatives of a batch.
    pool_size: labels in a pool, at most; 0 is no limit.
    num_filling: F, where the pool is filled; else 0.

  Returns:
    `[L]` float32, at most 0.

  Example:
    >>> log_pool_odds(np.array([3, 1]), 4, 0).round(2)  # 1 - e^-3 and 1 - e^-1
    array([-0.05, -0.46], dtype=float32)

  References:
    Bengio and Senécal, Adaptive importance sampling to accelerate training of a neural probabilistic
    language model, 2008; Yi et al., Sampling-bias-corrected neural modeling for large corpus item
    recommendations, RecSys 2019.
  """
  share = np.asarray(label_counts, np.float64) / max(np.sum(label_counts), 1)
  odds, room = -np.expm1(-num_drawn * share), pool_size or len(share)
  if num_filling > num_drawn:
    more = -np.expm1(-num_filling * share) - odds
    odds += more * np.clip((room - odds.sum()) / max(more.sum(), 1e-9), 0, 1)
  others = np.clip(room - odds.sum(), 0, num_others)
  return np.log(np.clip(odds + others / len(share), 1e-9, 1.0)).astype(np.float32)
