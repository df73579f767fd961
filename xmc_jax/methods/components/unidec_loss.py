"""Computes UniDEC's loss: pick-some-labels, both ways, by texts and by classifiers (sections 3.1 to 3.3).

Table 3 adds binary cross-entropy; its weight, its reduction and its prior are ours.
docs/formulas.md, "UniDEC and DEPSL".
"""

import jax.numpy as jnp
import ml_collections

from xmc_jax import losses
from xmc_jax.methods.components.pool_losses import known_columns, log_negatives_per_positive
from xmc_jax.types import Array, Batch

_LOSSES = {"decoupled_softmax": losses.decoupled_softmax, "softmax": losses.softmax}


def total(
  settings: ml_collections.ConfigDict,
  batch: Batch,
  scores: Array,
  by_table: Array | None,
) -> tuple[Array, dict[str, Array]]:
  """Returns L = λ L_D + (1 - λ) L_C and its parts, for the log, of scores `[B, S]` by texts and classifiers.

  Binary cross-entropy takes s - log(S / P) for a score s, with P true labels a row in a pool of S: at s = 0
  it then expects P of them, where σ(0) expects half of the pool. No other loss has this prior.
  Without it, new classifiers first learn to reject all points, and Φ_C of all points turns in one direction.
  """
  num_columns = scores.shape[1]
  labels = known_columns(batch.positives, num_columns)
  real = (batch.rows >= 0)[:, None] & (batch.columns >= 0)
  where = real & ~known_columns(batch.excluded, num_columns)

  def binary(scores):  # treats each pair alone, so that one way is both
    return losses.pick_some_labels(
      scores - log_negatives_per_positive(batch), labels, losses.binary, where=where
    )

  def both_ways(scores, kind, query_weight):
    if kind == "binary":
      return binary(scores)
    by_query = losses.pick_some_labels(scores, labels, _LOSSES[kind], where=where)
    if not settings.symmetric:
      return by_query
    by_label = losses.pick_some_labels(scores.T, labels.T, _LOSSES[kind], where=where.T)
    return query_weight * by_query + (1 - query_weight) * by_label

  total = both_ways(scores, settings.loss, settings.encoder_query_weight)
  parts = {
    "encoder_loss": total,
    "positives_in_pool": jnp.sum(labels & where) / jnp.maximum(jnp.sum(batch.rows >= 0), 1),  # mean |P_i^B|
    "labels_in_pool": jnp.sum(batch.columns >= 0),
  }
  if by_table is None:
    return total, parts
  scores = by_table / settings.classifier_temperature
  kind = settings.loss if settings.classifier_loss == "same" else settings.classifier_loss
  of_table = both_ways(scores, kind, settings.classifier_query_weight)
  if settings.binary_weight:
    of_table += settings.binary_weight * binary(scores)
  total = settings.encoder_weight * total + (1 - settings.encoder_weight) * of_table
  return total, {**parts, "classifier_loss": of_table}
