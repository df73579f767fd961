"""Hidden states without padding: real tokens one behind the other, for all that treats tokens one by one.

Only attention looks at a text as a whole. Products, layer norms and GELU of a padded batch are in good part
done for nothing: of 256 titles in groups of three widths 22 % are padding, laid out this way 9 %.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from xmc_jax.types import Array


class Places(NamedTuple):
  """Where each token of `[n, T]` stands among the real ones, and the other way round.

  Attributes:
    cells: `[P]` int32 where in the flattened `[n, T]` each place's token is; n T for an unused place.
    places: `[n, T]` int32 the place of each token; P for padding.
  """

  cells: Array
  places: Array

  def pack(self, padded: Array) -> Array:
    """`[n, T, D]` to `[P, D]`; what is padding falls away."""
    return _move(padded.reshape(-1, padded.shape[-1]), self.cells, self.places.ravel())

  def unpack(self, packed: Array) -> Array:
    """`[P, D]` to `[n, T, D]`, padding zero."""
    return _move(packed, self.places.ravel(), self.cells).reshape(*self.places.shape, packed.shape[-1])


def find_places(mask: Array, num_places: int) -> Places:
  """The places of the tokens that `mask` `[n, T]` marks; there must be no more than `num_places`."""
  flat = mask.ravel()
  cells = jnp.flatnonzero(flat, size=num_places, fill_value=flat.size).astype(jnp.int32)
  places = jnp.where(mask, jnp.cumsum(flat, dtype=jnp.int32).reshape(mask.shape) - 1, num_places)
  return Places(cells, places)


@jax.custom_vjp
def _move(rows: Array, sources: Array, targets: Array) -> Array:
  """`rows[sources]`, zero where there is no such row; `targets` are the places that each row goes to.

  No row goes to two places, so the gradient is the move back: a gather too, where autodiff would add up.
  """
  return jnp.asarray(rows).at[sources].get(mode="fill", fill_value=0)


def _move_forward(rows, sources, targets):
  return _move(rows, sources, targets), (sources, targets)


def _move_backward(residuals, cotangent):
  sources, targets = residuals
  return _move(cotangent, targets, sources), None, None


_move.defvjp(_move_forward, _move_backward)
