"""Computes softmax cross-entropy over the pool: InfoNCE, and SupCon for several positives."""

import jax.numpy as jnp

from xmc_jax.losses._inputs import as_rows, log_sum_exp, positive_weights
from xmc_jax.types import Array


def softmax(
  scores: Array, labels: Array, *, weights: Array | None = None, where: Array | None = None
) -> Array:
  r"""Computes softmax cross-entropy of a row's positives against all of its labels.

  .. math::
    \ell(s, y) = -\sum_{j \in P} w_j \log \frac{e^{s_j}}{\sum_l e^{s_l}},
    \qquad P = \{j : y_j = 1\}

  With one positive this is InfoNCE over the pool, with all of them SupCon. A
  positive competes with the row's other positives; in `decoupled_softmax` it
  does not.

  Args:
    scores: `[..., L]` scores, any float type; computed in float32 at least.
    labels: `[..., L]` in {0, 1}, 1 for a true label.
    weights: `[..., L]` weight of each positive, ignored elsewhere; by default
      labels / max(1, number of positives in the row).
    where: `[..., L]` bool, True for a real entry; others are as if not there,
      whatever their score. By default all are real.

  Returns:
    `[...]` loss of each row; 0, with gradient 0, for a row without positives.

  Example:
    >>> from xmc_jax import losses
    >>> losses.softmax([[0.0, 0.0, 0.0, 0.0]], [[1, 0, 0, 0]])  # log 4
    Array([1.3862944], dtype=float32)

  References:
    Gupta et al., `Dual-Encoders for Extreme Multi-Label Classification
    <https://arxiv.org/abs/2310.10636>`_, ICLR 2024, eq. 3; over a pool eq. 4. docs/formulas.md, "Softmax".
  """
  rows = as_rows(scores, labels, where)
  log_total, shifted = log_sum_exp(rows.scores, rows.real)
  surprise = jnp.where(rows.positive, log_total - shifted, 0)
  return jnp.sum(positive_weights(rows, weights) * surprise, axis=-1)
