"""Fresh negatives from a cache of all label embeddings (Lindgren et al., 2021; DEXML, section C.3).

Each step embeds the labels of its pool and writes these embeddings into the cache. Of all other labels, those
whose cached embeddings have the largest loss gradients join the pool, and are embedded anew. To write these
new embeddings into the cache, too, is ours. docs/formulas.md, "Fresh negatives".
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from xmc_jax.distributed import sharding
from xmc_jax.types import EXTRA_STATE, Array, Batch, DatasetInfo, Refresh, Tokens

CACHE = "label_cache"  # in `extra_state`: `[L', D]`, L' = L rounded up to the devices
RULE = (f"(^|/){CACHE}$", (sharding.LABEL_ROWS,))


def empty(info: DatasetInfo, width: int) -> dict[str, Array]:
  """Returns the cache before its first refresh: all zeros."""
  return {CACHE: jnp.zeros((sharding.rounded_up(info.num_labels, info.mesh.size), width))}


def refreshes() -> Mapping[str, Refresh]:
  """Returns the refresh that embeds all labels into the cache, once, before the first step."""
  return {CACHE: Refresh(every_epochs=0.0, compute=lambda snapshot: snapshot.labels, target=EXTRA_STATE)}


def extend(
  cache: Array,
  queries: Array,
  labels: Array,
  batch: Batch,
  *,
  number: int,
  info: DatasetInfo,
  embed: Callable[[Tokens], Array],
  loss: Callable[[Array, Array, Batch], Array],
) -> tuple[Array, Array, Batch]:
  """Adds fresh negatives to a pool.

  Args:
    cache: `[L', D]`.
    queries, labels: `[B, D]` and `[S, D]` embeddings of the batch's points and its pool's labels.
    batch: its `positives` and `excluded` are label ids.
    number: m, how many labels join, at most L.
    info: of the data.
    embed: `tokens -> vectors`.
    loss: `(queries, labels, batch) -> scalar`, whose gradients choose the labels.

  Returns:
    `(new cache, labels [S + m', D], batch)` with the new pool's columns; m' is m rounded up to the devices.
  """
  cache = _update(cache, batch.columns, labels)
  everything = jnp.arange(len(cache), dtype=jnp.int32)
  # A column for each label, in the order of ids.
  over_all = batch._replace(columns=jnp.where(everything < info.num_labels, everything, -1))
  gradients = jax.grad(lambda vectors: loss(jax.lax.stop_gradient(queries), vectors, over_all))(cache)
  chosen = _largest(gradients, over_all.columns, batch.columns, number)
  chosen = jnp.pad(chosen, (0, -number % info.mesh.size), constant_values=-1)
  texts = jax.tree.map(lambda leaf: leaf[jnp.maximum(chosen, 0)], batch.every_label)
  fresh = embed(Tokens(texts.ids, jnp.where(chosen >= 0, texts.lengths, 0)))
  columns = jnp.concatenate([batch.columns, chosen])
  cache = _update(cache, chosen, fresh)
  return cache, jnp.concatenate([labels, fresh]), _in_columns(batch, columns, len(cache))


def _update(cache: Array, columns: Array, vectors: Array) -> Array:
  """Returns the cache with new rows for the labels in `columns`; -1 is padding."""
  rows = jnp.where(columns >= 0, columns, len(cache))
  return jnp.asarray(cache).at[rows].set(jax.lax.stop_gradient(vectors), mode="drop")


def _largest(gradients: Array, real: Array, taken: Array, number: int) -> Array:
  """Returns `[number]` real labels with the largest gradients, without those taken; -1 where none is left."""
  size = jnp.where(real >= 0, jnp.sum(gradients**2, axis=1), -1.0)
  size = size.at[jnp.where(taken >= 0, taken, len(size))].set(-1.0, mode="drop")
  top, labels = jax.lax.top_k(size, number)
  return jnp.where(top >= 0, labels, -1)


def _in_columns(batch: Batch, columns: Array, num_rows: int) -> Batch:
  """Returns the batch with the columns of its label ids in the pool; -1 for a label that is not there."""
  positions = jnp.arange(len(columns), dtype=jnp.int32)
  column_of = jnp.full(num_rows, -1, jnp.int32)
  column_of = column_of.at[jnp.where(columns >= 0, columns, num_rows)].set(positions, mode="drop")

  def to_columns(labels: Array) -> Array:
    return jnp.where(labels >= 0, column_of[jnp.maximum(labels, 0)], -1)

  return batch._replace(
    columns=columns, positives=to_columns(batch.positives), excluded=to_columns(batch.excluded)
  )
