"""Prepares masks, weights and a safe log-sum-exp for the losses over a row of scores.

The losses need no gradient guards of their own as long as they follow one rule:
an entry that must not count is replaced with `jnp.where` before any non-linear
function is applied. The replacement drops its cotangent, even where the value was
inf or NaN; multiplying by zero would turn that value into a NaN gradient.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from xmc_jax.types import Array


class Rows(NamedTuple):
  """Holds a loss's input in one form.

  Attributes:
    scores: `[..., L]` scores in float32 (float64 stays float64).
    real: `[..., L]` bool, the entries that exist.
    positive: `[..., L]` bool, the real entries that carry a label.
  """

  scores: Array
  real: Array
  positive: Array


def as_rows(scores: Array, labels: Array, where: Array | None) -> Rows:
  """Converts `scores`, `labels` and `where`, each `[..., L]`, to `Rows`."""
  scores, labels = jnp.asarray(scores), jnp.asarray(labels)
  shape = jnp.broadcast_shapes(scores.shape, labels.shape)
  scores = jnp.broadcast_to(scores.astype(jnp.promote_types(scores.dtype, jnp.float32)), shape)
  real = jnp.broadcast_to(True if where is None else jnp.asarray(where, bool), shape)
  return Rows(scores, real, real & (labels > 0))


def positive_weights(rows: Rows, weights: Array | None) -> Array:
  """Returns each entry's loss weight `[..., L]`: 0 off the positives, by default 1 / max(1, their number)."""
  if weights is None:
    count = jnp.sum(rows.positive, axis=-1, keepdims=True)
    return rows.positive / jnp.maximum(count, 1).astype(rows.scores.dtype)
  return jnp.where(rows.positive, jnp.asarray(weights), 0).astype(rows.scores.dtype)


def log_sum_exp(scores: Array, where: Array) -> tuple[Array, Array]:
  """Computes log Σ exp(scores) over the entries in `where`, relative to the largest of them.

  The scores are returned relative to the same number, so that a difference
  between the two results stays exact even for scores of 1e4.

  Args:
    scores: `[..., L]`.
    where: `[..., L]` bool, entries to sum over.

  Returns:
    `(log_total, shifted)`: the logarithm `[..., 1]`, -inf (with gradient 0) where
    there is nothing to sum, and the scores `[..., L]`, shifted by the same number.
  """
  peak = jnp.max(scores, axis=-1, keepdims=True, where=where, initial=-jnp.inf)
  # Both results are shifted by the same constant, so no gradient has to flow through it.
  peak = jax.lax.stop_gradient(jnp.where(jnp.isfinite(peak), peak, 0))
  shifted = scores - peak
  total = jnp.sum(jnp.exp(jnp.where(where, shifted, -jnp.inf)), axis=-1, keepdims=True)
  some = total > 0
  return jnp.where(some, jnp.log(jnp.where(some, total, 1)), -jnp.inf), shifted
