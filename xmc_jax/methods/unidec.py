"""UniDEC and DEPSL: a dual encoder and classifiers trained together on one pool (Kharbanda et al., 2024).

A batch is a leaf of a balanced tree over the points, its pool their drawn positives and hard negatives. Every
true label that came into the pool counts, whoever brought it (pick-some-labels, section 3.1). Of two heads on
one encoder, Φ_D embeds points and label texts, Φ_C points alone, which meet a classifier Ψ_l for each label.
Labels are ranked by [Φ_D(x) ⊕ n(Φ_C(x))] · [Φ_D(z_l) ⊕ n(Ψ_l)], or by one half. DEPSL has no second half.
"""

import functools
import math

import jax
import jax.numpy as jnp

from xmc_jax import losses
from xmc_jax.distributed import sharding
from xmc_jax.methods.components import embedding, refreshes, unidec_heads
from xmc_jax.methods.components.pool_losses import known_columns, log_odds_of_pool
from xmc_jax.models import normalize
from xmc_jax.types import Array, Batch, BatchSpec, DatasetInfo, Method

FIXED = {
  "labels": ("in_batch", "all"),
  "loss": ("decoupled_softmax", "softmax"),
  "leaf_size": (0,),
  "num_fresh_negatives": (0,),
}
TABLE = "classifiers"  # in `params`: Ψ, `[L', D']`, L' = L rounded up to the devices
_DROPPED = "dropped"  # in `aux`: `[2]` hard negatives and positives so far that found no room in a pool
_LOSSES = {
  "decoupled_softmax": losses.decoupled_softmax,
  "softmax": losses.softmax,
}


def make(config, info: DatasetInfo) -> Method:
  """Builds the method; with `config.method.encoder_weight = 1`, or no `classifier_dim`, it is DEPSL."""
  settings = config.method
  dim = settings.classifier_dim if settings.encoder_weight < 1 else 0
  heads = unidec_heads.build(config, info, dim)
  embed_points, embed_texts = embedding.embedders(config, info)
  log_odds = log_odds_of_pool(config, info) if settings.log_q else None

  def init(key):
    heads_key, table_key = jax.random.split(key)
    num_rows = sharding.rounded_up(info.num_labels, info.mesh.size)
    table = {TABLE: 0.02 * jax.random.normal(table_key, (num_rows, dim))} if dim else {}
    return {**heads.init(heads_key), **table}, {_DROPPED: jnp.zeros(2)} if settings.pool_size else {}

  def loss(params, aux, batch, key):
    query_key, label_key = jax.random.split(key)
    queries = embed_points(heads.of_points, params, batch.queries, query_key)
    texts = embed_texts(heads.of_texts, params, batch.labels, label_key)
    scores = _products(queries[:, : heads.width], texts) / settings.temperature
    scores -= log_odds[jnp.maximum(batch.columns, 0)] if settings.log_q else 0.0
    by_table = _products(queries[:, heads.width :], params[TABLE]) if dim else None
    value, parts = _loss(settings, batch, scores, by_table, math.log(info.num_labels))
    if settings.pool_size:
      aux = {_DROPPED: aux[_DROPPED] + batch.dropped}
      parts |= dict(zip(("dropped_negatives", "dropped_positives"), aux[_DROPPED]))
    return value, parts, aux

  def embed_queries(params, aux, tokens):
    halves = heads.of_points(params, tokens)
    return jnp.concatenate([halves[:, : heads.width], normalize(halves[:, heads.width :])], axis=1)

  def by_text(params, aux, tokens, ids):
    return jnp.pad(heads.of_texts(params, tokens), ((0, 0), (0, dim)))

  def by_classifier(params, aux, tokens, ids):
    return jnp.pad(normalize(params[TABLE][jnp.maximum(ids, 0)]), ((0, 0), (heads.width, 0)))

  text_half = slice(heads.width)
  hard = refreshes.shortlists(config, text_half) if settings.num_hard_negatives else {}
  depsl = Method(
    init=init,
    loss=loss,
    embed_queries=embed_queries,
    embed_labels=by_text,
    batch=refreshes.of_leaves(_batch(settings), settings),
    rules=((f"(^|/){TABLE}(/|$)", (sharding.LABEL_ROWS,)), ("(^|/)dropped$", ()), embedding.ENCODER_RULE),
    refreshes={**refreshes.leaves(config, text_half), **hard},
  )
  if not dim:
    return depsl
  return depsl._replace(
    embed_labels=lambda *given: by_text(*given) + by_classifier(*given),
    tables={TABLE: lambda batch, aux: batch.columns},
    views={"encoder": by_text, "classifier": by_classifier},
  )


_products = functools.partial(jnp.einsum, "bd,sd->bs", precision="highest")  # in float32 on any device


def _batch(settings) -> BatchSpec:
  """β positives and η hard negatives a point; without the latter other positives fill the pool (Table 5)."""
  return BatchSpec(
    labels=settings.labels,
    num_positives=settings.num_positives,
    num_random_negatives=settings.num_random_negatives,
    num_hard_negatives=settings.num_hard_negatives,
    pool_size=settings.pool_size,
    fill_pool=settings.pool_size > 0 and not settings.num_hard_negatives,
  )


def _loss(
  settings, batch: Batch, scores: Array, by_table: Array | None, log_num_labels: float
) -> tuple[Array, dict[str, Array]]:
  """L = λ L_D + (1 - λ) L_C and what goes into the log, from scores `[B, S]` by texts and by classifiers.

  Binary cross-entropy has scores s - log L in their place, for L labels: at s = 0 it then expects about one
  true label of all L, where σ(0) expects half of the pool. The prior has no parameter, and no other loss has
  it. Without, what it asks of a fresh classifier is 'no' to all, and Φ_C of all points takes one direction.
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
