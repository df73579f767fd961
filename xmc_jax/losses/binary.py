"""Computes binary cross-entropy over all labels: one-versus-all."""

import jax
import jax.numpy as jnp

from xmc_jax.losses._inputs import as_rows
from xmc_jax.types import Array


def binary(scores: Array, labels: Array, *, where: Array | None = None) -> Array:
  r"""Computes binary cross-entropy, summed over the labels of a row.

  .. math::
    \ell(s, y) = \sum_l \bigl( \mathrm{softplus}(s_l) - y_l s_l \bigr)
               = \sum_l \mathrm{softplus}\bigl((1 - 2 y_l) \, s_l\bigr)

  The code computes the second form: it stays exact where the first subtracts
  two large numbers.

  Args:
    scores: `[..., L]` scores, any float type; computed in float32 at least.
    labels: `[..., L]` in {0, 1}, 1 for a true label.
    where: `[..., L]` bool, True for a real entry; others are as if not there,
      whatever their score. By default all are real.

  Returns:
    `[...]` loss of each row, a sum and not a mean over labels. A row without
    positives still has the loss of its negatives; one without real entries gives 0.

  Example:
    >>> from xmc_jax import losses
    >>> losses.binary([[0.0, 0.0]], [[1, 0]])  # 2 log 2
    Array([1.3862944], dtype=float32)

  References:
    Gupta et al., `Dual-Encoders for Extreme Multi-Label Classification
    <https://arxiv.org/abs/2310.10636>`_, ICLR 2024, eq. 2. docs/formulas.md, "Binary cross-entropy".
  """
  rows = as_rows(scores, labels, where)
  against = jnp.where(rows.positive, -rows.scores, rows.scores)
  # softplus(-inf) is 0 with gradient 0: an entry that is not real adds nothing.
  return jnp.sum(jax.nn.softplus(jnp.where(rows.real, against, -jnp.inf)), axis=-1)
