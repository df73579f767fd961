"""DEXA: NGAME with auxiliary vectors, one for each cluster of labels (Dahiya et al., KDD 2023). Module I.

A label's vector is n(E(z) + a): its text's embedding and its cluster's vector (section 4, eq. 5). `a`
can learn what a label's text does not say, so that the encoder need not. Frequent labels may have a
cluster of their own. `methods/classifier.py` is Module II. docs/formulas.md, "Module I".
"""

import jax
import ml_collections

from xmc_jax.config import declare
from xmc_jax.distributed import sharding
from xmc_jax.methods import ngame
from xmc_jax.methods.components import embedding, label_clusters, label_priors
from xmc_jax.methods.components.pool_losses import mean_over_rows, pool_loss
from xmc_jax.models import normalize
from xmc_jax.ops import lazy_adam
from xmc_jax.types import DatasetInfo, Method

SETTINGS = declare(ngame.SETTINGS, label_clusters.SETTINGS)
TABLE = "auxiliary"  # in `params`: `[K', D]`, K' = K and the head labels, rounded up to the devices


def make(config: ml_collections.ConfigDict, info: DatasetInfo) -> Method:
  """Builds the method; with `config.method.num_label_clusters = 0` and no head labels it is NGAME."""
  base, num_clusters = ngame.make(config, info), label_clusters.number(config.method, info)
  if not num_clusters:
    return base
  settings = config.method
  encoder, text_encoder = (
    embedding.encoder(config, info, normalize=unit) for unit in (True, settings.unit_texts)
  )
  embed_points, embed_texts = embedding.embedders(config, info)
  bias = label_priors.bias(config, info, base.batch)

  def init(key):
    encoder_key, table_key = jax.random.split(key)
    table = label_clusters.first_vectors(table_key, num_clusters, encoder.width, info)
    return {**encoder.init(encoder_key), TABLE: table}, label_clusters.init_state(info)

  def loss(params, extra_state, batch, key):
    query_key, label_key = jax.random.split(key)
    queries = embed_points(encoder.embed, params, batch.queries, query_key)
    texts = embed_texts(text_encoder.embed, params, batch.labels, label_key)
    labels = normalize(texts + params[TABLE])
    per_row = pool_loss(config, info, settings.loss, normalize(queries), labels, batch, bias)
    return mean_over_rows(per_row, batch), {}, extra_state

  def embed_labels(params, extra_state, tokens, ids):
    vectors = lazy_adam.take(params[TABLE], label_clusters.lookup(extra_state, ids), mesh=info.mesh)
    return normalize(text_encoder.embed(params, tokens) + vectors)

  def init_from_run(source):
    """Returns another run's encoder and auxiliary vectors, and the clusters that these belong to."""
    return source.params, {**label_clusters.init_state(info), **source.extra_state}

  dexa = base._replace(
    init_from_run=init_from_run,
    init=init,
    loss=loss,
    embed_queries=lambda params, extra_state, tokens: normalize(encoder.embed(params, tokens)),
    embed_labels=embed_labels,
    embed_texts=lambda params, extra_state, tokens, ids: normalize(text_encoder.embed(params, tokens)),
    sharding_rules=(
      (f"(^|/){TABLE}(/|$)", (sharding.LABEL_ROWS,)),
      label_clusters.RULE,
      embedding.ENCODER_RULE,
    ),
    sparse_params={TABLE: lambda batch, extra_state: label_clusters.lookup(extra_state, batch.columns)},
    refreshes={**label_clusters.refreshes(config, info), **base.refreshes},
  )
  return label_priors.in_ranking(dexa, config, info)
