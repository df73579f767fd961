"""Gradient cache: embed many texts without keeping their activations (Gao et al., 2021; DEXML, section C.1).

The forward pass keeps only the embeddings. In the backward pass each chunk is
encoded again, with the same dropout key, and its cached embedding gradient is
propagated. In JAX that is rematerialisation of a scanned body.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from xmc_jax.contract import Array, PyTree, Tokens


def embed_groups(
  embed: Callable[..., Array],
  params: PyTree,
  groups: tuple[Tokens, ...],
  key: Array | None = None,
  *,
  chunk: int = 0,
  devices=None,
  axes: tuple[str, ...] = ("data",),
) -> Array:
  """Embeds token groups and joins the rows.

  Args:
    embed: `(params, tokens, key) -> [n, D]`.
    params: its parameters.
    groups: each `[n, T]`; n divides by the devices.
    key: dropout key, None for none; every group and chunk gets its own.
    chunk: a group of more rows is embedded so many at a time under the gradient
      cache, and activations take the memory of one chunk; 0 embeds it at once.
    devices: the mesh; None is one device.
    axes: mesh axes that the rows are split over.

  Returns:
    `[rows of all groups, D]`, split over `axes`: first the rows of every group
    that the first device holds, then those of the second (`data.buckets.device_major`).
  """
  num_shards = 1
  for axis in axes if devices is not None else ():
    num_shards *= devices.shape[axis]
  keys = [None] * len(groups) if key is None else jax.random.split(key, len(groups))

  def split(array: Array, dimension: int) -> Array:
    if devices is None:
      return array
    spec = PartitionSpec(*[None] * dimension, axes)
    return jax.lax.with_sharding_constraint(array, NamedSharding(devices, spec))

  def embed_group(group: Tokens, key: Array | None) -> Array:
    num_rows = group.ids.shape[0]
    num_chunks = -(-num_rows // chunk) if chunk else 1
    if num_chunks == 1:
      return embed(params, group, key)
    per_chunk = -(-num_rows // (num_chunks * num_shards)) * num_shards
    # Row i stands in chunk i % num_chunks: so every chunk is split over the devices as the rows are.
    chunks = jax.tree.map(lambda leaf: split(_deal(leaf, per_chunk, num_chunks), 1), group)

    def body(numbered):
      number, tokens = numbered
      return embed(params, tokens, None if key is None else jax.random.fold_in(key, number))

    embedded = jax.lax.map(jax.checkpoint(body), (jnp.arange(num_chunks), chunks))
    return jnp.swapaxes(embedded, 0, 1).reshape(-1, embedded.shape[-1])[:num_rows]

  parts = [embed_group(group, key) for group, key in zip(groups, keys)]
  if len(parts) == 1:
    return split(parts[0], 0)
  by_device = [part.reshape(num_shards, -1, part.shape[-1]) for part in parts]
  return split(jnp.concatenate(by_device, axis=1).reshape(-1, parts[0].shape[-1]), 0)


def _deal(array: Array, per_chunk: int, num_chunks: int) -> Array:
  """`[n, ...]` to `[num_chunks, per_chunk, ...]`, padded with zeros."""
  padding = per_chunk * num_chunks - array.shape[0]
  array = jnp.pad(array, [(0, padding)] + [(0, 0)] * (array.ndim - 1)) if padding else array
  return jnp.swapaxes(array.reshape(per_chunk, num_chunks, *array.shape[1:]), 0, 1)
