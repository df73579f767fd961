"""Computes decoupled softmax: positives do not compete with each other (DEXML)."""

import jax
import jax.numpy as jnp

from xmc_jax.losses._inputs import as_rows, log_sum_exp, positive_weights
from xmc_jax.types import Array


def decoupled_softmax(
  scores: Array, labels: Array, *, weights: Array | None = None, where: Array | None = None
) -> Array:
  r"""Computes softmax cross-entropy of each positive against the row's negatives only.

  .. math::
    \ell(s, y) = -\sum_{j \in P} w_j \log \frac{e^{s_j}}{e^{s_j} + \sum_{l \notin P} e^{s_l}}
               = \sum_{j \in P} w_j \, \mathrm{softplus}\Bigl(\log \sum_{l \notin P} e^{s_l} - s_j\Bigr)

  Every true label stays out of every denominator, also one of weight 0: pass a
  positive that was not sampled in this step with weight 0. In `softmax`,
  positives compete.

  The code computes the second form: the sum over negatives is the same for all
  positives of a row, so the cost and memory are those of `softmax`, O(L) a row.

  Args:
    scores: `[..., L]` scores, any float type; computed in float32 at least.
    labels: `[..., L]` in {0, 1}, 1 for a true label.
    weights: `[..., L]` weight of each positive, ignored elsewhere; by default
      labels / max(1, number of positives in the row).
    where: `[..., L]` bool, True for a real entry; others are as if not there,
      whatever their score. By default all are real.

  Returns:
    `[...]` loss of each row; 0, with gradient 0, for a row without positives or
    without negatives.

  Example:
    >>> from xmc_jax import losses
    >>> losses.decoupled_softmax([[0.0, 0.0, 0.0, 0.0]], [[1, 1, 0, 0]])  # log 3, where softmax has log 4
    Array([1.0986123], dtype=float32)

  References:
    Gupta et al., `Dual-Encoders for Extreme Multi-Label Classification
    <https://arxiv.org/abs/2310.10636>`_, ICLR 2024, eq. 5. docs/formulas.md, "Decoupled softmax".
  """
  rows = as_rows(scores, labels, where)
  log_negatives, shifted = log_sum_exp(rows.scores, rows.real & ~rows.positive)
  # softplus(-inf) is 0 with gradient 0: so entries off the positives add nothing, and
  # neither do rows without negatives, where log_negatives is -inf.
  surprise = jax.nn.softplus(jnp.where(rows.positive, log_negatives - shifted, -jnp.inf))
  return jnp.sum(positive_weights(rows, weights) * surprise, axis=-1)
