"""Module II of NGAME, DEXA and PRIME: a classifier for each label, on a frozen encoder.

A run of any dual encoder (`config.init_from`) gives the encoder and its label vectors ẑ. Classifiers start at
ẑ and are trained by the margin loss against the hardest labels of the batch; batches are made as NGAME's.
Labels are then ranked by ẑ, by their classifiers, or by both (NGAME; DEXA, section 4 and eq. 6).
docs/formulas.md, "Module II".
"""

import jax.numpy as jnp
import ml_collections
import numpy as np

from xmc_jax import models, refresh
from xmc_jax.config import Key, declare
from xmc_jax.distributed import sharding, split_table
from xmc_jax.errors import UserError
from xmc_jax.methods.components import embedding, pool, pool_losses, refreshes
from xmc_jax.methods.components.pool_losses import mean_over_rows, pool_loss
from xmc_jax.models import normalize
from xmc_jax.models.layers import dropout
from xmc_jax.ops.unit_rows import unit_rows
from xmc_jax.types import DatasetInfo, Method, PyTree

SETTINGS = declare(
  pool.POSITIVES,
  pool_losses.MARGIN,
  refreshes.CLUSTERS,
  needs_run=True,
  loss=Key("margin", "the loss to minimise", choices=("margin",)),
  labels=Key(
    "in_batch_table",
    "the labels of a step: the batch's sampled positives, by their classifiers",
    choices=("in_batch_table",),
  ),
  query_dropout=Key(0.5, "dropout on the frozen encoder's vectors", below=1),
  temperature=pool_losses.TEMPERATURE_OF_RANKING,
)
TABLE = "classifiers"  # in `params`: `[L', D]`, L' = L rounded up to the devices
_LABELS = "label_vectors"  # in `extra_state`: ẑ, of the same shape


def make(config: ml_collections.ConfigDict, info: DatasetInfo) -> Method:
  """Builds the method; `config.encoder` is that of the run that it starts from."""
  encoder = embedding.encoder(config, info)
  num_rows = sharding.rounded_up(info.num_labels, info.mesh.size)

  def init(key):
    nothing = np.broadcast_to(np.float32(0), (num_rows, encoder.width))  # takes no memory in a plan
    return {TABLE: nothing}, {"encoder": encoder.init(key), _LABELS: nothing}

  def init_from_run(source: refresh.Snapshot) -> tuple[PyTree, PyTree]:
    if "encoder" not in source.params or source.labels.shape[1] != encoder.width:
      raise UserError(
        "classifiers need a dual encoder, which that run has not trained; give a run of dexa.py, ngame.py, "
        "prime.py, ramen.py or dexml.py"
      )
    vectors = np.zeros((num_rows, encoder.width), np.float32)
    vectors[: info.num_labels] = split_table.whole(source.labels)
    unit_rows(vectors, in_place=True)
    encoder_params = {name: source.params[name] for name in models.PARAMETERS if name in source.params}
    return {TABLE: vectors}, {"encoder": encoder_params, _LABELS: vectors}

  def loss(params, extra_state, batch, key):
    queries = normalize(dropout(batch.vectors, config.method.query_dropout, key))
    labels = normalize(params[TABLE])
    per_row = pool_loss(config, info, "margin", queries, labels, batch)
    return mean_over_rows(per_row, batch), {}, extra_state

  def by_text(params, extra_state, tokens, ids):
    return extra_state[_LABELS][jnp.maximum(ids, 0)]

  def by_classifier(params, extra_state, tokens, ids):
    return normalize(params[TABLE][jnp.maximum(ids, 0)])

  batch = pool.batch_spec(config.method, frozen=True)
  return Method(
    init=init,
    loss=loss,
    embed_queries=lambda params, extra_state, tokens: normalize(
      encoder.embed(extra_state["encoder"], tokens)
    ),
    embed_labels=lambda *given: by_text(*given) + by_classifier(*given),
    batch=refreshes.in_clusters(batch, config.method),
    sharding_rules=((f"(^|/)({TABLE}|{_LABELS})(/|$)", (sharding.LABEL_ROWS,)), embedding.ENCODER_RULE),
    refreshes=refreshes.clusters(config),
    sparse_params={TABLE: lambda batch, extra_state: batch.columns},
    scorers={"encoder": by_text, "classifier": by_classifier},
    init_from_run=init_from_run,
  )
