"""Samples terms of a sum, the large ones more often than the small ones, so that the sum stays unbiased."""

import jax
import jax.numpy as jnp

from xmc_jax.types import Array

_BITS = 30  # of an int32, without its sign and one to spare
_LEAST = 1e-30  # of a sum that is divided by


def inclusion_probabilities(sizes: Array, number: int) -> Array:
  """Returns `[n]`, min(1, c · size), with c such that they add up to `number`.

  If fewer rows than `number` are not 0, these get 1.
  """
  descending = -jnp.sort(-sizes)
  at_most = jnp.cumsum(descending[::-1])[::-1]  # the sum of each row and all smaller ones
  left = number - jnp.arange(len(sizes))  # once all larger ones are certain
  first = jnp.argmax(left * descending <= at_most)  # the largest that is not certain
  scale = left[first] / jnp.maximum(at_most[first], _LEAST)
  return jnp.minimum(1.0, scale * sizes)


def systematic(key: Array, probabilities: Array, number: int) -> tuple[Array, Array]:
  """Samples rows with these probabilities (Madow, 1949: equal steps over their running sum).

  Args:
    key: of one random number.
    probabilities: `[n]`, in sum at most `number`.
    number: how many places there are.

  Returns:
    `[number]` ids, and the weights of their terms; 0 at places that are not used, NaN if a probability is.
  """
  unit = 2 ** (_BITS - number.bit_length())  # sums of whole numbers are exact, those of floats are not
  parts = jnp.ceil(probabilities * unit).astype(jnp.int32)
  ends = jnp.cumsum(parts)
  step = jnp.maximum(unit, -(-ends[-1] // number))
  places = jax.random.randint(key, (), 0, step) + step * jnp.arange(number)
  found = jnp.searchsorted(ends, places, side="right")
  ids = jnp.minimum(found, len(parts) - 1)
  weights = jnp.where(found < len(parts), step / jnp.maximum(parts[ids], 1), 0.0)
  return ids, jnp.where(jnp.isfinite(probabilities).all(), weights, jnp.nan)
