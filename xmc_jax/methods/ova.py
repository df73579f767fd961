"""One-versus-all: an encoder and a linear layer over all labels, trained together (BCE; DEXML, section 5.2).

Renée's form (Jain et al., MLSys 2023) without its kernels: no label texts, a row of the table per label.
A label's bias is in the table's last column, and each query ends with a 1, so that prediction stays one
inner product. The initial weights and biases are ours. docs/formulas.md, "DPR, ANCE, OvA".
"""

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from xmc_jax.config import Key, declare
from xmc_jax.distributed import sharding
from xmc_jax.methods.components import embedding
from xmc_jax.methods.components.pool_losses import SCORES_IN_CHUNKS, mean_over_rows, pool_loss
from xmc_jax.types import BatchSpec, DatasetInfo, Method

SETTINGS = declare(
  SCORES_IN_CHUNKS,
  embedding.POINTS,
  loss=Key("binary", "the loss to minimise", choices=("binary",)),
  labels=Key("table", "the labels of a step: all, by their rows in the table", choices=("table",)),
)


def make(config: ml_collections.ConfigDict, info: DatasetInfo) -> Method:
  """Builds the method; the table has its own rate, `config.train.table_learning_rate`."""
  encoder = embedding.encoder(config, info)
  num_rows = sharding.rounded_up(info.num_labels, info.mesh.size)  # rows from L on are never used

  embed_points, _ = embedding.embedders(config, info)

  def init(key):
    encoder_key, table_key = jax.random.split(key)
    weights = 0.02 * jax.random.normal(table_key, (num_rows, encoder.width))
    # Before training, about one label per point is expected.
    bias = jnp.full((num_rows, 1), -np.log(max(info.num_labels, 2)) * config.method.temperature)
    return {**encoder.init(encoder_key), "table": jnp.concatenate([weights, bias], axis=1)}, {}

  def embed(params, tokens, key=None):
    vectors = encoder.embed(params, tokens, key)
    return jnp.concatenate([vectors, jnp.ones((vectors.shape[0], 1), vectors.dtype)], axis=1)

  def loss(params, extra_state, batch, key):
    queries = embed_points(embed, params, batch.queries, key)
    per_row = pool_loss(config, info, "binary", queries, params["table"], batch)
    return mean_over_rows(per_row, batch), {}, extra_state

  return Method(
    init=init,
    loss=loss,
    embed_queries=lambda params, extra_state, tokens: embed(params, tokens),
    embed_labels=lambda params, extra_state, tokens, ids: params["table"][jnp.maximum(ids, 0)],
    batch=BatchSpec(labels="table", num_positives=0),
    sharding_rules=(("(^|/)table$", ("label",)), embedding.ENCODER_RULE),
  )
