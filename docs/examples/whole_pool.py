"""Applies a loss of a row's scores to a pool that is scored whole: for losses that the library does not have.

All scores `[B, S]` are in memory at once, so it is for pools of thousands of labels.
"""

import jax
import jax.numpy as jnp

from xmc_jax.methods.components.pool_losses import known_columns, mean_over_rows


def mean_loss(loss_of_row, queries, labels, batch, temperature: float):
  """Returns the mean over the batch's rows of `loss_of_row(scores [S], positive [S], counts [S])`.

  `positive` marks the row's true labels, `counts` the columns that the loss may see: no padding, no filter
  pair. A row may have no positive, where all are filter pairs.
  """
  scores = jnp.matmul(queries, labels.T, precision="highest") / temperature
  excluded = known_columns(batch.excluded, len(labels))
  counts = (batch.columns >= 0) & ~excluded
  positive = known_columns(batch.positives, len(labels)) & counts
  per_row = jax.vmap(loss_of_row)(scores, positive, counts)
  return mean_over_rows(jnp.where(batch.rows >= 0, per_row, 0.0), batch)
