"""UniDEC's loss: pick-some-labels over a pool, both ways, by texts and by classifiers (sections 3.1 to 3.3).

Binary cross-entropy beside it is Table 3's; its weight, its reduction and its prior are ours.
docs/formulas.md, "UniDEC and DEPSL".
"""

import jax.numpy as jnp
import ml_collections

from xmc_jax import losses
from xmc_jax.methods.components.pool_losses import known_columns
from xmc_jax.types import Array, Batch

_LOSSES = {"decoupled_softmax": losses.decoupled_softmax, "softmax": losses.softmax}


def total(
  settings: ml_collections.ConfigDict,
  batch: Batch,
  scores: Array,
  by_table: Array | None,
  log_num_labels: float,
) -> tuple[Array, dict[str, Array]]:
  """L = λ L_D + (1 - λ) L_C and what goes into the log, from scores `[B, S]` by texts and by classifiers.

  Binary cross-entropy has scores s - log L in their place, for L labels: at s = 0 it then expects about one
  true label of all L, where σ(0) expects half of the pool. The prior has no parameter, and no other loss has
  it. Without, what it asks of a new classifier is 'no' to all, and Φ_C of all points takes one direction.
  """
  num_columns = scores.shape[1]
  labels = known_columns(batch.positives, num_columns)
  real = (batch.rows >= 0)[:, None] & (batch.columns >= 0)
  where = real & ~known_columns(batch.excluded, num_columns)

  def binary(scores):  # which takes each pair by itself: one way is both
    return losses.pick_some_labels(scores - log_num_labels, labels, losses.binary, where=where)

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
