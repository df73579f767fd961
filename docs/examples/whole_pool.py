"""Applies a loss of a row's scores to a pool that is scored whole: for losses that the library does not have.

Copy the function into the method's file. All scores `[B, S]` are in memory at once, so it is for pools of
thousands of labels.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from xmc_jax.methods.components.pool_losses import known_columns, mean_over_rows
from xmc_jax.types import Array, Batch


def mean_loss(
  loss_of_row: Callable[..., Array], queries: Array, labels: Array, batch: Batch, temperature: float
) -> Array:
  """Returns the mean over the batch's rows of `loss_of_row(scores, true, weights, counts)`, each `[S]`.

  Queries are `[B, D]`, labels `[S, D]`.

  `true` marks all the row's true labels in the pool, `weights` those that it sampled (they add up to 1; 0
  elsewhere), `counts` the columns that the loss may see: no padding, no filter pair. The row's negatives are
  `counts & ~true`.
  """
  scores = jnp.matmul(queries, labels.T, precision="highest") / temperature
  true = known_columns(batch.positives, len(labels))
  counts = (batch.columns >= 0) & ~known_columns(batch.excluded, len(labels))
  rows, no_column = jnp.arange(len(scores))[:, None], len(labels)
  places = jnp.where(batch.positives >= 0, batch.positives, no_column)
  weights = jnp.zeros(scores.shape).at[rows, places].set(batch.weights, mode="drop")
  per_row = jax.vmap(loss_of_row)(scores, true, weights, counts)
  return mean_over_rows(jnp.where(batch.rows >= 0, per_row, 0.0), batch)
