"""Builds DEXML, DPR, ANCE and NGAME: one encoder for points and labels, and a loss over a pool of labels.

If batches hold anchors of metadata graphs, RAMEN's regularisers are added. docs/formulas.md, "DEXML and
its baselines".
"""

from typing import Any

import jax
import ml_collections

from xmc_jax.config import declare
from xmc_jax.methods.components import (
  cached_negatives,
  embedding,
  graph_regularizer,
  label_priors,
  pool,
  refreshes,
)
from xmc_jax.methods.components.pool_losses import SCORES_IN_CHUNKS, mean_over_rows, pool_loss
from xmc_jax.types import BatchSpec, DatasetInfo, Method

SETTINGS = declare(SCORES_IN_CHUNKS, embedding.SETTINGS, pool.SETTINGS, label_priors.SETTINGS)


def make(
  config: ml_collections.ConfigDict,
  info: DatasetInfo,
  *,
  loss: str,
  batch: BatchSpec,
  label_gradients: float = 1.0,
  **loss_options: Any,
) -> Method:
  """Builds a dual encoder.

  Args:
    config: `config.encoder` is used, and the temperature, chunks and dropout of `config.method`.
    info: of the data.
    loss: one of `pool_losses.pool_loss`; `loss_options` are passed on to that function.
    batch: how batches are built; if it asks for hard or fresh negatives, the method has their refreshes.
    label_gradients: share of the labels, and anchors, that a step backpropagates through.
  """
  encoder = embedding.encoder(config, info)
  num_fresh = batch.num_fresh_negatives
  embed_points, embed_texts = embedding.embedders(config, info)
  embed_parts = embedding.part_embedder(config, info, label_gradients)
  bias = label_priors.bias(config, info, batch)

  def mean_loss(queries, labels, batch):
    return mean_over_rows(pool_loss(config, info, loss, queries, labels, batch, bias, **loss_options), batch)

  def total_loss(params, extra_state, batch, key):
    query_key, label_key, fresh_key = jax.random.split(key, 3)
    queries = embed_points(encoder.embed, params, batch.queries, query_key)
    links = dict(batch.sampled_anchors)
    texts = [batch.labels, *(side.anchors for side in links.values())]
    labels, *anchors = embed_parts(encoder.embed, params, texts, label_key)
    of_side = dict(zip(links, anchors))
    regulariser, metrics = graph_regularizer.add_up(config, info, queries, labels, of_side, batch)
    if num_fresh:
      cache, labels, batch = cached_negatives.extend(
        extra_state[cached_negatives.CACHE],
        queries,
        labels,
        batch,
        number=num_fresh,
        info=info,
        embed=lambda tokens: embed_texts(encoder.embed, params, (tokens,), fresh_key),
        loss=mean_loss,
      )
      extra_state = {**extra_state, cached_negatives.CACHE: cache}
    return mean_loss(queries, labels, batch) + regulariser, metrics, extra_state

  method = Method(
    init=lambda key: (encoder.init(key), cached_negatives.empty(info, encoder.width) if num_fresh else {}),
    loss=total_loss,
    embed_queries=lambda params, extra_state, tokens: encoder.embed(params, tokens),
    embed_labels=lambda params, extra_state, tokens, ids: encoder.embed(params, tokens),
    batch=batch,
    sharding_rules=(cached_negatives.RULE, embedding.ENCODER_RULE),
    refreshes={**refreshes.shortlists(config), **(cached_negatives.refreshes() if num_fresh else {})},
  )
  return label_priors.in_ranking(method, config, info)
