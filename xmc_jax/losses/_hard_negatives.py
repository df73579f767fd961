"""Finds a row's hardest negatives, for the margin losses, and sums them up for all positives at once."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from xmc_jax.types import Array


class HardNegatives(NamedTuple):
  r"""Holds the η hardest negatives of each row in the order of their scores, :math:`s_1` the highest.

  For each positive, the negatives that violate its margin are the first few of these. So a sum over violators
  is read from running sums, which are computed once for all positives of the row.

  Attributes:
    scores: `[..., η]`, falling; -inf where there is no negative.
    highest: `[..., 1]`, s_1, a constant for the gradient; 0 where there is none.
    weights: `[..., η]` :math:`\sum_{j \le v} e^{(s_j - s_1) / T}` for v = 1 .. η.
    sums: `[..., η]` :math:`\sum_{j \le v} e^{(s_j - s_1) / T} (s_j - s_1)`.
    leads: as `sums`, but a gradient flows through the weights only, if these are differentiable.
    places: `[..., η]` int32 position of each score in its row.
  """

  scores: Array
  highest: Array
  weights: Array
  sums: Array
  leads: Array
  places: Array

  def count_above(self, thresholds: Array) -> Array:
    """Counts how many of a row's scores are above each threshold `[..., P]`."""
    search = functools.partial(jnp.searchsorted, method="scan_unrolled")
    ascending, wanted = jax.lax.stop_gradient((-self.scores, -thresholds))
    return jnp.vectorize(search, signature="(n),(p)->(p)")(ascending, wanted)

  def mean_of_first(self, counts: Array) -> Array:
    """Returns `[..., P]` weighted means of the first `counts` scores, minus the highest; undefined for 0."""
    last = jnp.maximum(counts - 1, 0)
    some = self.weights[..., :1] > 0
    means = self.sums / jnp.where(some, self.weights, 1)
    return jnp.take_along_axis(means, last, axis=-1)


def hardest_negatives(
  scores: Array, negative: Array, number: int, temperature: float, differentiable_weights: bool = False
) -> HardNegatives:
  """Finds the hardest negatives of each row.

  Args:
    scores: `[..., S]` scores of the pool, S at least 1.
    negative: `[..., S]` bool, the entries that count; others may hold anything.
    number: η, at least 1; cut down to S.
    temperature: T; 0 gives all the same weight.
    differentiable_weights: lets the gradient through the weights; else they are constants.
  """
  falling = jnp.where(negative, scores, -jnp.inf)
  falling, places = jax.lax.top_k(falling, min(number, scores.shape[-1]))
  some = falling > -jnp.inf
  finite = jnp.where(some, falling, 0)
  # The first score, by a maximum: XLA would merge a slice with top_k's own, and then sort whole rows. It is
  # subtracted here and added again later, so no gradient has to flow through it.
  first = jnp.max(falling, axis=-1, keepdims=True)
  highest = jax.lax.stop_gradient(jnp.where(first > -jnp.inf, first, 0))
  below = jnp.where(some, finite - highest, 0)
  weights = jnp.where(some, jnp.exp(below / jnp.where(temperature > 0, temperature, jnp.inf)), 0)
  if not differentiable_weights:
    weights = jax.lax.stop_gradient(weights)
  of_each = weights, weights * below, weights * jax.lax.stop_gradient(below)
  weights, sums, leads = (jnp.cumsum(each, axis=-1) for each in of_each)
  return HardNegatives(falling, highest, weights, sums, leads, places)
