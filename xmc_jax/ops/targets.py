"""A batch's positives and exclusions, scattered over the pool's columns."""

import jax.numpy as jnp

from xmc_jax.contract import Array, Batch


def scatter_columns(columns: Array, values: Array, num_columns: int) -> Array:
  """`[B, P]` column ids (-1 = none) and their values to a dense `[B, num_columns]` array of sums."""
  rows = jnp.arange(columns.shape[0])[:, None]
  target = jnp.where(columns >= 0, columns, num_columns)  # one column past the end takes the padding
  dense = jnp.zeros((columns.shape[0], num_columns + 1), values.dtype)
  return dense.at[rows, target].add(values)[:, :num_columns]


def dense_targets(batch: Batch) -> tuple[Array, Array, Array]:
  """What the losses need, over the S columns of the batch's pool.

  Returns:
    labels: `[B, S]` float32 in {0, 1}, every true label in the pool, drawn or not.
    weights: `[B, S]` float32, the drawn positives' loss weights.
    where: `[B, S]` boolean, False for padding columns and excluded pairs.
  """
  num_columns = batch.columns.shape[0]
  labels = scatter_columns(batch.positives, jnp.ones(batch.positives.shape), num_columns)
  weights = scatter_columns(batch.positives, batch.weights, num_columns)
  excluded = scatter_columns(batch.excluded, jnp.ones(batch.excluded.shape), num_columns)
  where = (batch.columns >= 0)[None, :] & (excluded == 0)
  return jnp.minimum(labels, 1.0), weights, where
