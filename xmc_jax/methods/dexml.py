"""DEXML: a dual encoder trained against all labels (Gupta et al., ICLR 2024).

One shared encoder embeds points and label texts; the loss of a point runs over
every label, or over the batch's drawn positives with random labels added. One
positive is drawn per point and step; its other positives are left out of the
denominator (decoupled softmax, eq. 5).
"""

import jax
import jax.numpy as jnp

from xmc_jax import losses, models
from xmc_jax.contract import BatchSpec, DatasetInfo, Method
from xmc_jax.ops.grad_cache import embed_groups
from xmc_jax.ops.targets import dense_targets


def make(config, info: DatasetInfo) -> Method:
  """Builds the method; `config.method` and `config.encoder` hold its settings."""
  encoder = models.build(config.encoder, vocab_size=info.vocab_size, special_ids=info.special_ids)
  temperature, dropout_on_labels = config.method.temperature, config.method.dropout_on_labels
  row_loss = _row_loss(config.method.loss)

  def init(key):
    return encoder.init(key), {}

  def loss(params, aux, fresh, batch, key):
    query_key, label_key = jax.random.split(key)
    queries = embed_groups(encoder.embed, params, batch.queries, query_key)
    labels = embed_groups(encoder.embed, params, batch.labels, label_key if dropout_on_labels else None)
    scores = jnp.matmul(queries, labels.T) / temperature
    per_row = row_loss(scores, *dense_targets(batch))
    return jnp.sum(per_row) / jnp.maximum(jnp.sum(batch.rows >= 0), 1), {}, aux

  return Method(
    init=init,
    loss=loss,
    embed_queries=lambda params, aux, tokens: encoder.embed(params, tokens),
    embed_labels=lambda params, aux, tokens, ids: encoder.embed(params, tokens),
    batch=BatchSpec(
      labels=config.method.labels,
      num_positives=config.method.num_positives,
      num_random_negatives=config.method.num_random_negatives,
    ),
    rules=((".*", ()),),
  )


def _row_loss(name: str):
  """`(scores, labels, weights, where) -> [B]`. Padding rows have no labels and contribute nothing."""
  if name == "binary":

    def binary(scores, labels, weights, where):
      return losses.binary(scores, labels, where=where & (labels.sum(-1, keepdims=True) > 0))

    return binary

  if name == "softmax":

    def softmax(scores, labels, weights, where):
      undrawn = (labels > 0) & (weights == 0)  # left out of the denominator too
      return losses.softmax(scores, labels, weights=weights, where=where & ~undrawn)

    return softmax

  def decoupled_softmax(scores, labels, weights, where):
    return losses.decoupled_softmax(scores, labels, weights=weights, where=where)

  return decoupled_softmax
