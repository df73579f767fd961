"""What the margin losses share: a row's hardest negatives, summed up for all of its positives at once."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from xmc_jax.types import Array


class HardNegatives(NamedTuple):
  r"""The η hardest negatives of each row in the order of their scores, :math:`s_1` the highest.

  The negatives that violate a positive's margin are the first few of them, whichever positive it is. So what
  is summed over violators is a difference of two running sums, made once for all positives of the row.

  Attributes:
    scores: `[..., η]`, falling; -inf where there is no negative.
    highest: `[..., 1]`, s_1, a constant for the gradient; 0 where there is none.
    weights: `[..., η]` :math:`\sum_{j \le v} e^{(s_j - s_1) / T}` for v = 1 .. η.
    sums: `[..., η]` :math:`\sum_{j \le v} e^{(s_j - s_1) / T} (s_j - s_1)`.
    leads: the same, with a gradient through the weights alone, if through these.
    places: `[..., η]` int32 where each score stands in its row.
  """

  scores: Array
  highest: Array
  weights: Array
  sums: Array
  leads: Array
  places: Array

  def count_above(self, thresholds: Array) -> Array:
    """How many of a row's scores are above each threshold `[..., P]`."""
    search = functools.partial(jnp.searchsorted, method="scan_unrolled")
    ascending, wanted = jax.lax.stop_gradient((-self.scores, -thresholds))
    return jnp.vectorize(search, signature="(n),(p)->(p)")(ascending, wanted)

  def mean_of_first(self, counts: Array) -> Array:
    """`[..., P]` the weighted mean of the first `counts` scores, less the highest; for 0 of them anything."""
    last = jnp.maximum(counts - 1, 0)
    some = self.scores[..., :1] > -jnp.inf
    means = self.sums / jnp.where(some, self.weights, 1)
    return jnp.take_along_axis(means, last, axis=-1)


def hardest_negatives(
  scores: Array, negative: Array, number: int, temperature: float, differentiable_weights: bool = False
) -> HardNegatives:
  """The hardest negatives of rows.

  Args:
    scores: `[..., S]` scores of the pool, S at least 1.
    negative: `[..., S]` bool, the entries that count; others may hold anything.
    number: η, at least 1; cut down to S.
    temperature: T, positive.
    differentiable_weights: lets the gradient through the weights; else they are constants.
  """
  falling = jnp.where(negative, scores, -jnp.inf)
  falling, places = jax.lax.top_k(falling, min(number, scores.shape[-1]))
  some = falling > -jnp.inf
  finite = jnp.where(some, falling, 0)
  # Taken off and added again: no gradient has to flow through it.
  highest = jax.lax.stop_gradient(finite[..., :1])
  below = jnp.where(some, finite - highest, 0)
  weights = jnp.where(some, jnp.exp(below / temperature), 0)
  if not differentiable_weights:
    weights = jax.lax.stop_gradient(weights)
  of_each = weights, weights * below, weights * jax.lax.stop_gradient(below)
  weights, sums, leads = (jnp.cumsum(each, axis=-1) for each in of_each)
  return HardNegatives(falling, highest, weights, sums, leads, places)
