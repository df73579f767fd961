"""Embeds many texts without keeping activations: gradient cache (Gao et al., 2021; DEXML, sections 4.2, B.5).

The forward pass keeps only the embeddings. In the backward pass each chunk is
encoded again, with the same dropout key, and the gradient of its embeddings is
propagated. In JAX that is rematerialisation of a scanned body. docs/formulas.md,
"Gradient cache".
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xmc_jax.distributed import platform
from xmc_jax.distributed.sharding import rounded_up
from xmc_jax.ops.row_sampling import inclusion_probabilities, systematic
from xmc_jax.types import Array, PyTree, Tokens

_TILE = 8  # a GPU copies the operands of a product whose number of rows does not divide by this


class Sample(NamedTuple):
  """Says which rows of a width a backward pass embeds: the larger a gradient, the likelier."""

  share: float  # of the rows on each device
  key: Array  # of the random numbers


def embed_parts(
  embed: Callable[..., Array],
  params: PyTree,
  parts: Sequence[tuple[Tokens, ...]],
  key: Array | None = None,
  *,
  chunk: int = 0,
  devices: Mesh | None = None,
  axes: tuple[str, ...] = ("data",),
  uncached_tokens: int = 0,
  sample: Sample | None = None,
) -> list[Array]:
  """Embeds several parts' token groups in one pass: groups of one width go through the encoder together.

  Args:
    embed: `(params, tokens, key) -> [n, D]`.
    params: its parameters.
    parts: the groups of each part, `[n, T]`, of different T; n divides by the devices.
    key: dropout key, None for none; every width and chunk gets its own.
    chunk: rows of one width that a device embeds at a time. If it has more, they go through the gradient
      cache, where activations take the memory of one chunk. 0 embeds all at once.
    devices: the mesh; None is one device.
    axes: mesh axes that the rows are split over.
    uncached_tokens: tokens of a device, padding included, that stay out of the gradient cache: their texts
      are embedded in one call of each width, the narrowest first, and keep their activations.
    sample: which rows the backward pass embeds again, sampled by the size of their gradients; None is all.
      Without dropout gradients are unbiased. Dropout is sampled anew, so that they are not those of the
      masks that gave the vectors. `uncached_tokens` has no effect.

  Returns:
    For each part `[rows of its groups, D]`, split over `axes`: first the rows of every group
    that the first device holds, then those of the second (`batching.length_buckets.device_major`).
  """
  rows = _Rows(devices, axes)
  places: dict[int, list[tuple[int, int]]] = {}  # for each width, the groups that have it
  for part, groups in enumerate(parts):
    for number, group in enumerate(groups):
      places.setdefault(group.ids.shape[1], []).append((part, number))
  joined = [_joined([parts[part][number] for part, number in alike], rows) for alike in places.values()]
  num_uncached = _num_uncached(joined, rows.num_shards, chunk, uncached_tokens)
  keys = [None] * len(places) if key is None else jax.random.split(key, len(places))
  found: list[list[Any]] = [[None] * len(groups) for groups in parts]
  for number, (alike, group, own_key) in enumerate(zip(places.values(), joined, keys)):
    if sample is None:
      own_embed = functools.partial(embed, params)
      vectors = _embed_rows(own_embed, group, own_key, rows, chunk, num_uncached[number])
    else:
      own_sample = sample._replace(key=jax.random.fold_in(sample.key, number))
      vectors = _embed_with_sampled_gradients(embed, params, group, own_key, rows, chunk, own_sample)
    sizes = [len(parts[part][number].lengths) for part, number in alike]
    for (part, number), own in zip(alike, rows.cut(vectors, sizes)):
      found[part][number] = own
  return [rows.split(rows.join(vectors), 0) for vectors in found]


def _num_uncached(groups: Sequence[Tokens], num_shards: int, chunk: int, tokens: int) -> list[int]:
  """Returns how many rows of each group stay out of the gradient cache: all of one chunk, and `tokens` more.

  `chunk` and `tokens` are those of one of `num_shards` devices.
  """
  found = [0] * len(groups)
  for index in sorted(range(len(groups)), key=lambda index: groups[index].ids.shape[1]):
    num_rows, width = groups[index].ids.shape[0] // num_shards, groups[index].ids.shape[1]
    most = tokens // width
    if not chunk or num_rows <= chunk:
      found[index] = num_rows * num_shards
    elif most >= chunk:  # fewer than a chunk would not be worth a compilation
      num_own = num_rows if most >= num_rows else most - most % _tile(chunk)
      found[index] = num_own * num_shards
      tokens -= num_own * width
  return found


def _tile(chunk: int) -> int:
  """Returns the number that the rows encoded together divide by, on one device."""
  return _TILE if platform.name() != "cpu" and chunk % _TILE == 0 else 1


def _embed_rows(
  embed: Callable[[Tokens, Array | None], Array],
  group: Tokens,
  key: Array | None,
  rows: "_Rows",
  chunk: int,
  num_uncached: int,
) -> Array:
  """Embeds the rows of one width: the last `num_uncached` in one call, the others in chunks."""
  num_rows = len(group.lengths)
  if num_uncached == num_rows:
    return embed(group, key)
  sizes = [num_rows - num_uncached, num_uncached] if num_uncached else [num_rows]
  cached, *uncached = map(Tokens, rows.cut(group.ids, sizes), rows.cut(group.lengths, sizes))
  last_key = None if key is None else jax.random.fold_in(key, num_rows)  # no chunk has this number
  return rows.join(
    [_embed_in_chunks(embed, cached, key, rows, chunk), *(embed(group, last_key) for group in uncached)]
  )


def _embed_in_chunks(
  embed: Callable[[Tokens, Array | None], Array], group: Tokens, key: Array | None, rows: "_Rows", chunk: int
) -> Array:
  """Embeds rows chunk by chunk, at most `chunk` on each device; the backward pass embeds them again."""
  num_rows = len(group.lengths)
  num_chunks = -(-num_rows // (chunk * rows.num_shards))
  per_chunk = rounded_up(-(-num_rows // num_chunks), _tile(chunk) * rows.num_shards)
  # Row i goes to chunk i % num_chunks: so every chunk is split over the devices as the rows are.
  chunks = jax.tree.map(lambda leaf: rows.split(_deal(leaf, per_chunk, num_chunks), 1), group)

  def body(numbered):
    number, tokens = numbered
    return embed(tokens, None if key is None else jax.random.fold_in(key, number))

  embedded = jax.lax.map(jax.checkpoint(body), (jnp.arange(num_chunks), chunks))
  return jnp.swapaxes(embedded, 0, 1).reshape(-1, embedded.shape[-1])[:num_rows]


def _embed_with_sampled_gradients(
  embed: Callable[..., Array],
  params: PyTree,
  group: Tokens,
  key: Array | None,
  rows: "_Rows",
  chunk: int,
  sample: Sample,
) -> Array:
  """Embeds the rows of one width; the backward pass embeds only a sample of them again."""

  def embedded(params: PyTree, group: Tokens, key: Array | None) -> Array:
    (num_uncached,) = _num_uncached([group], rows.num_shards, chunk, 0)
    return _embed_rows(functools.partial(embed, params), group, key, rows, chunk, num_uncached)

  def backward(inputs: tuple, gradients: Array) -> tuple:
    params, group, key, sampling_key = inputs
    num_rows = len(gradients) // rows.num_shards
    number = min(num_rows, rounded_up(math.ceil(sample.share * num_rows), _tile(chunk)))
    take, weights = rows.sample(jnp.linalg.norm(gradients, axis=1), number, sampling_key)
    other_key = None if key is None else jax.random.fold_in(key, len(gradients))  # no chunk has this number
    sampled = Tokens(take(group.ids), take(group.lengths))
    _, pull = jax.vjp(lambda params: embedded(params, sampled, other_key), params)
    (summed,) = pull((weights[:, None] * take(gradients)).astype(gradients.dtype))
    return summed, None, None, None

  differentiable = jax.custom_vjp(lambda params, group, key, _: embedded(params, group, key))
  differentiable.defvjp(lambda *inputs: (embedded(*inputs[:3]), inputs), backward)
  return differentiable(params, group, key, sample.key)


def _joined(groups: Sequence[Tokens], rows: "_Rows") -> Tokens:
  """Joins the rows of groups of one width; counts a group as full if its number of real tokens is unknown."""
  known = [group.num_real_tokens for group in groups]
  most = [group.ids.size if number is None else number for group, number in zip(groups, known)]
  return Tokens(
    rows.join([group.ids for group in groups]),
    rows.join([group.lengths for group in groups]),
    None if set(known) == {None} else sum(most),
  )


class _Rows:
  """Splits, joins and cuts arrays whose rows are split over devices, first the first device's rows."""

  def __init__(self, devices: Mesh | None, axes: tuple[str, ...]):
    self._devices, self._axes = devices, axes
    self.num_shards = math.prod(devices.shape[axis] for axis in axes) if devices is not None else 1

  def split(self, array: Array, dimension: int) -> Array:
    """Constrains this dimension to be split over the devices."""
    if self._devices is None:
      return array
    spec = PartitionSpec(*[None] * dimension, self._axes)
    return jax.lax.with_sharding_constraint(array, NamedSharding(self._devices, spec))

  def join(self, arrays: Sequence[Array]) -> Array:
    """Joins the rows of several arrays; no row leaves its device."""
    if len(arrays) == 1:
      return arrays[0]
    by_device = [self._by_device(array) for array in arrays]
    return jnp.concatenate(by_device, axis=1).reshape(-1, *arrays[0].shape[1:])

  def cut(self, array: Array, sizes: Sequence[int]) -> list[Array]:
    """Cuts a joined array into arrays of these sizes: undoes `join`."""
    if len(sizes) == 1:
      return [array]
    ends = np.cumsum(sizes)[:-1] // self.num_shards
    return [own.reshape(-1, *array.shape[1:]) for own in jnp.split(self._by_device(array), ends, axis=1)]

  def sample(self, sizes: Array, number: int, key: Array) -> tuple[Callable[[Array], Array], Array]:
    """Samples `number` rows of each device by their sizes.

    Returns a function that takes these rows of an array, and their `[number · devices]` weights.
    """
    probabilities = jax.vmap(lambda own: inclusion_probabilities(own, number))(self._by_device(sizes))
    keys = jax.random.split(key, self.num_shards)
    ids, weights = jax.vmap(lambda own_key, own: systematic(own_key, own, number))(keys, probabilities)

    def take(array: Array) -> Array:
      taken = jax.vmap(lambda own, own_ids: own[own_ids])(self._by_device(array), ids)
      return self.split(taken.reshape(-1, *array.shape[1:]), 0)

    return take, weights.reshape(-1)

  def _by_device(self, array: Array) -> Array:
    return array.reshape(self.num_shards, -1, *array.shape[1:])


def _deal(array: Array, per_chunk: int, num_chunks: int) -> Array:
  """Deals the rows `[n, ...]` out to `[num_chunks, per_chunk, ...]`, padded with zeros."""
  padding = per_chunk * num_chunks - array.shape[0]
  array = jnp.pad(array, [(0, padding)] + [(0, 0)] * (array.ndim - 1)) if padding else array
  return jnp.swapaxes(array.reshape(per_chunk, num_chunks, *array.shape[1:]), 0, 1)
