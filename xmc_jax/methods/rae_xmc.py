"""RAE-XMC: an encoder and a memory of training points and labels (Wang et al. 2025, arXiv 2502.10615).

One shared encoder embeds points and label texts. Its loss is contrastive over a memory's entries (eq. 10): a
point's sampled label against the pool's labels that are not its own, and against the batch's other points
that share no label with it. Labels are ranked by the memory (`retrieval/key_memory.py`).

`point_positive_weight` is ours: points that share a label are positives, too. Batches are then made
of clusters, as NGAME's are, so that they hold such points. docs/formulas.md, "RAE-XMC".
"""

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from xmc_jax import losses
from xmc_jax.config import Key, declare
from xmc_jax.methods.components import embedding, label_priors, pool, refreshes
from xmc_jax.methods.components.pool_losses import SCORES, known_columns, mean_over_rows, products
from xmc_jax.types import Array, Batch, DatasetInfo, Method

SETTINGS = declare(
  SCORES,
  embedding.SETTINGS,
  pool.SETTINGS,
  pool.HARD_NEGATIVES,
  refreshes.CLUSTERS,
  label_priors.LOG_Q,
  loss=Key("decoupled_softmax", "the loss to minimise", choices=("decoupled_softmax",)),
  labels=pool.IN_BATCH,
  cluster_size=Key(4, "points of a cluster, at most, if point_positive_weight is not 0", least=1),
  point_positive_weight=Key(0.0, "weight of points that share a label, as positives; 0 is the paper", most=1),
)


def make(config: ml_collections.ConfigDict, info: DatasetInfo) -> Method:
  """Builds the method."""
  settings = config.method
  encoder = embedding.encoder(config, info)
  embed_points, embed_texts = embedding.embedders(config, info)
  batch = pool.batch_spec(settings, shared=True)
  bias = label_priors.bias(config, info, batch)
  of_points = np.log((info.num_labelled or info.num_points) / config.train.batch_size)  # -log q of a point

  def loss(params, extra_state, batch, key):
    query_key, label_key = jax.random.split(key)
    queries = embed_points(encoder.embed, params, batch.queries, query_key)
    labels = embed_texts(encoder.embed, params, batch.labels, label_key)
    of_keys = None
    if bias is not None:
      of_keys = jnp.append(bias[jnp.maximum(batch.columns, 0)], jnp.full(len(queries), of_points))
    per_row = memory_loss(
      queries,
      labels,
      batch,
      temperature=settings.temperature,
      point_weight=settings.point_positive_weight,
      bias=of_keys,
    )
    sharing = jnp.sum(batch.shared & ~jnp.eye(len(batch.shared), dtype=bool), axis=1)
    metrics = {"points_sharing_a_label": mean_over_rows(sharing, batch)}
    return mean_over_rows(per_row, batch), metrics, extra_state

  def by_text(params, extra_state, tokens, ids):
    return encoder.embed(params, tokens)

  clustered = settings.point_positive_weight > 0
  return Method(
    init=lambda key: (encoder.init(key), {}),
    loss=loss,
    embed_queries=lambda params, extra_state, tokens: encoder.embed(params, tokens),
    embed_labels=by_text,
    batch=refreshes.in_clusters(batch, settings) if clustered else batch,
    sharding_rules=(embedding.ENCODER_RULE,),
    refreshes={**refreshes.shortlists(config), **(refreshes.clusters(config) if clustered else {})},
    scorers={"encoder": by_text},
    key_temperature=settings.temperature,
  )


def memory_loss(
  queries: Array,
  labels: Array,
  batch: Batch,
  *,
  temperature: float,
  point_weight: float = 0.0,
  bias: Array | None = None,
) -> Array:
  r"""Computes decoupled softmax of each point over the pool's labels and the batch's other points.

  .. math::
    \ell_i(s) = \log\Bigl(1 + e^{-s} \bigl(\textstyle\sum_{l \notin P_i} e^{s_{il}}
      + \sum_{j \ne i, P_i \cap P_j = \emptyset} e^{t_{ij}}\bigr)\Bigr), \qquad
    s_{il} = \tfrac1\tau \langle q_i, z_l \rangle, \quad t_{ij} = \tfrac1\tau \langle q_i, q_j \rangle

  The loss of point i is :math:`(1 - w)` times the mean of :math:`\ell_i(s_{ip})` over its sampled labels p,
  and w times the mean of :math:`\ell_i(t_{ij})` over the batch's other points j that share a label with it;
  if there are none, w is 0.

  Args:
    queries: `[B, D]`; in the paper of length 1, as labels are.
    labels: `[S, D]`, the pool's.
    batch: says which columns are positives, and which points share a label; excluded pairs do not count.
    temperature: τ.
    point_weight: w, from 0 (the paper's eq. 10) to 1.
    bias: `[S + B]`, added to the scores of labels and points; None is 0.

  Returns:
    `[B]`; 0 for padding.
  """
  real, itself = batch.rows >= 0, jnp.eye(len(queries), dtype=bool)
  own = known_columns(batch.positives, len(labels))
  sharing = batch.shared & ~itself
  num_sharing = jnp.sum(sharing, axis=1, keepdims=True)
  weight = jnp.where(num_sharing > 0, point_weight, 0.0)
  of_labels = (1 - weight) * known_columns(batch.positives, len(labels), batch.weights)
  of_points = weight * sharing / jnp.maximum(num_sharing, 1)
  in_pool = (batch.columns >= 0) & ~known_columns(batch.excluded, len(labels))
  scores = [products(queries, keys) for keys in (labels, queries)]
  return losses.decoupled_softmax(
    jnp.concatenate(scores, axis=1) / temperature + (0 if bias is None else bias),
    jnp.concatenate([own, sharing], axis=1),
    weights=jnp.concatenate([of_labels, of_points], axis=1),
    where=jnp.concatenate([in_pool, real & ~itself], axis=1) & real[:, None],
  )
