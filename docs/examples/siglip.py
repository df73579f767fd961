"""SigLIP: every pair of a point and a label is a yes-or-no question of its own (Zhai et al., ICCV 2023).

No softmax, so no label's score depends on what else is in the pool: each pair has a logistic loss, by a
temperature and a bias that are learnt. The bias begins low, as nearly all pairs of a batch do not match.
"""

import jax
import jax.numpy as jnp
import ml_collections

from xmc_jax import models
from xmc_jax.config import Key, declare
from xmc_jax.methods.components import embedding, pool, refreshes
from xmc_jax.methods.components.pool_losses import SCORES_IN_CHUNKS, mean_over_rows, pool_loss
from xmc_jax.types import Array, DatasetInfo, Method, PyTree

SETTINGS = declare(
  SCORES_IN_CHUNKS,
  embedding.SETTINGS,
  pool.SETTINGS,
  pool.HARD_NEGATIVES,
  loss=Key("binary", "what is minimised", choices=("binary",)),
  labels=pool.IN_BATCH,
  temperature=Key(0.1, "of the first step: it is learnt", above=0),
  first_bias=Key(-10.0, "of the first step: it is learnt, too", least=-100, most=100),
)


def make(config: ml_collections.ConfigDict, info: DatasetInfo) -> Method:
  """Builds the method."""
  settings = config.method
  encoder = models.build(config.encoder, vocab_size=info.vocab_size, special_ids=info.special_ids)
  embed_points, embed_texts = embedding.embedders(config, info)

  def init(key):
    pairs = {"log_gain": jnp.zeros(()), "bias": jnp.full((), settings.first_bias)}
    return {**encoder.init(key), "pairs": pairs}, {}

  def embed(params, tokens, key=None):
    return encoder.embed({name: params[name] for name in params if name != "pairs"}, tokens, key)

  def loss(params, extra_state, batch, key):
    query_key, label_key = jax.random.split(key)
    queries = embed_points(embed, params, batch.queries, query_key)
    labels = embed_texts(embed, params, batch.labels, label_key)
    queries, labels = with_pairs(params["pairs"], queries, labels, settings.temperature)
    per_row = pool_loss(config, info, "binary", queries, labels, batch)
    metrics = {"gain": jnp.exp(params["pairs"]["log_gain"]), "bias": params["pairs"]["bias"]}
    return mean_over_rows(per_row, batch), metrics, extra_state

  return Method(
    init=init,
    loss=loss,
    embed_queries=lambda params, extra_state, tokens: embed(params, tokens),
    embed_labels=lambda params, extra_state, tokens, ids: embed(params, tokens),
    batch=pool.batch_spec(settings),
    sharding_rules=(embedding.ENCODER_RULE,),
    refreshes=refreshes.shortlists(config),
  )


def with_pairs(pairs: PyTree, queries: Array, labels: Array, temperature: float) -> tuple[Array, Array]:
  """`([B, D + 1], [S, D + 1])` whose inner products, over τ, are a pair's logit g ⟨q, z⟩ / τ + b.

  Args:
    pairs: log g and b, scalars.
    queries: `[B, D]` of length 1.
    labels: `[S, D]` likewise.
    temperature: τ, by which the loss divides all scores.
  """
  queries = jnp.exp(pairs["log_gain"]) * queries
  ones = jnp.ones((len(queries), 1), queries.dtype)
  biases = jnp.full((len(labels), 1), temperature * pairs["bias"], labels.dtype)
  return jnp.concatenate([queries, ones], axis=1), jnp.concatenate([labels, biases], axis=1)
