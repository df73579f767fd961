"""Reads texts that are longer than an encoder's positions in windows (docs/formulas.md, "Encoder")."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import core

from xmc_jax.types import Array


def read(
  encode: Callable[..., Array],
  ids: Array,
  mask: Array,
  width: int,
  num_places: int | None = None,
  padded_last: bool = False,
) -> Array:
  """Encodes texts of any length by a function for texts of at most `width` tokens.

  Args:
    encode: `(ids [m, S], mask [m, S], num_places, padded_last) -> [m, D]` float32, S <= `width`.
    ids, mask: `[n, T]`, mask bool, True = real. T may be a symbolic dimension, as in an export.
    width: tokens of a window, at least 2: a text's first real token, and the next `width` - 1 of the others.
    num_places, padded_last: as in `Encoder`.

  Returns:
    `[n, D]`: what `encode` returns if T <= `width`, else the mean over a text's windows, weighted by their
    numbers of real tokens; zero for a text without a token.
  """
  length = ids.shape[1]
  shorter = core.min_dim(length, width)
  if shorter == length:
    return encode(ids, mask, num_places, padded_last)

  def in_windows(ids, mask):
    if not padded_last:
      order = jnp.argsort(~mask, axis=1, stable=True)
      ids, mask = (jnp.take_along_axis(array, order, axis=1) for array in (ids, mask))
    ids, mask = _split(ids, width), _split(mask, width)
    # A later window without a token of its own is empty.
    mask = mask & (mask[..., 1:2] | (jnp.arange(mask.shape[1]) == 0)[:, None])
    # A text of t tokens has (t - 2) // (width - 1) later windows, each with the first token again.
    places = num_places and num_places + num_places // (width - 1)
    vectors = encode(ids.reshape(-1, width), mask.reshape(-1, width), places, True)
    weights = mask.sum(axis=2).astype(jnp.float32)
    weights = weights / jnp.maximum(weights.sum(axis=1, keepdims=True), 1)
    return (weights[..., None] * vectors.reshape(*weights.shape, vectors.shape[-1])).sum(axis=1)

  if isinstance(length, int):
    return in_windows(ids, mask)
  is_long = jnp.asarray(length) > width
  short = lambda ids, mask: encode(ids[:, :shorter], mask[:, :shorter], num_places, padded_last)
  return jax.lax.cond(is_long, in_windows, short, ids, mask)


def _split(array: Array, width: int) -> Array:
  """Splits `[n, T]` into windows `[n, w, width]` that begin with its first column; the last is padded."""
  num_texts, length = array.shape
  num_windows = (core.max_dim(length, 2) - 2) // (width - 1) + 1
  others = jnp.pad(array[:, 1:], ((0, 0), (0, num_windows * (width - 1) - (length - 1))))
  others = others.reshape(num_texts, num_windows, width - 1)
  first = jnp.broadcast_to(array[:, :1, None], (num_texts, num_windows, 1))
  return jnp.concatenate([first, others], axis=2)
