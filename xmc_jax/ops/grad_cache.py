"""Gradient cache: embed many texts without keeping their activations (Gao et al., 2021; DEXML, section C.1).

The forward pass keeps only the embeddings. In the backward pass each chunk is
encoded again, with the same dropout key, and its cached embedding gradient is
propagated. In JAX that is rematerialisation of a scanned body.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from xmc_jax.contract import Array, PyTree, Tokens


def embed_groups(
  embed: Callable[..., Array], params: PyTree, groups: tuple[Tokens, ...], key: Array | None = None
) -> Array:
  """Embeds token groups and joins the rows.

  Args:
    embed: `(params, tokens, key) -> [n, D]`.
    params: its parameters.
    groups: each `[n, T]`, embedded at once, or `[chunks, n, T]`, embedded chunk
      by chunk under the gradient cache: memory for activations of one chunk.
    key: dropout key, None for none; every group and chunk gets its own.

  Returns:
    `[rows of all groups, D]`.
  """

  def cached(index: int, group: Tokens) -> Array:
    def body(chunk):
      position, tokens = chunk
      return embed(params, tokens, None if key is None else jax.random.fold_in(keys[index], position))

    keys = None if key is None else jax.random.split(key, len(groups))
    embedded = jax.lax.map(jax.checkpoint(body), (jnp.arange(group.ids.shape[0]), group))
    return embedded.reshape(-1, embedded.shape[-1])

  def whole(index: int, group: Tokens) -> Array:
    return embed(params, group, None if key is None else jax.random.fold_in(key, index))

  parts = [(cached if group.ids.ndim == 3 else whole)(index, group) for index, group in enumerate(groups)]
  return jnp.concatenate(parts) if len(parts) > 1 else parts[0]
