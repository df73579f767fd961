"""PRIME: compares queries with label prototypes, by an adaptive margin (Dahiya et al., NAACL 2025). Module I.

A label's prototype is made by a small transformer of three vectors: its text's embedding, its centroid (where
its training points lie) and its cluster's free vector (section 3.2). Encoder and prototypes are trained
together on NGAME's batches (eq. 5); labels are ranked by prototypes. `methods/classifier.py` is Module II.
docs/formulas.md, "PRIME".
"""

import jax
import ml_collections

from xmc_jax.config import Key, declare
from xmc_jax.errors import UserError
from xmc_jax.methods.components import (
  centroid_updates,
  embedding,
  label_prototypes,
  pool,
  pool_losses,
  prime_loss,
  refreshes,
)
from xmc_jax.models import normalize
from xmc_jax.types import DatasetInfo, Method

SETTINGS = declare(
  embedding.SETTINGS,
  pool.SETTINGS,
  refreshes.CLUSTERS,
  prime_loss.SETTINGS,
  label_prototypes.SETTINGS,
  loss=Key("dynamic_margin", "the loss to minimise", choices=("dynamic_margin", "margin")),
  labels=pool.IN_BATCH,
  num_positives=Key(2, "positives sampled per point and step", least=1),
  temperature=pool_losses.TEMPERATURE_OF_RANKING,
)


def make(config: ml_collections.ConfigDict, info: DatasetInfo) -> Method:
  """Builds the method."""
  settings = config.method
  encoder = embedding.encoder(config, info, normalize=False)  # the network reads texts before they are scaled
  prototypes = label_prototypes.build(config, info, encoder.width)
  embed_points, embed_texts = embedding.embedders(config, info)
  exact = settings.exact_centroids or settings.centroids == "exact"

  def init(key):
    encoder_key, prototypes_key = jax.random.split(key)
    params, extra_state = prototypes.init(prototypes_key)
    return {**encoder.init(encoder_key), **params}, extra_state

  def loss(params, extra_state, batch, key):
    query_key, label_key, network_key = jax.random.split(key, 3)
    triplet_key = jax.random.fold_in(key, 3)
    queries = normalize(embed_points(encoder.embed, params, batch.queries, query_key))
    texts = embed_texts(encoder.embed, params, batch.labels, label_key)
    given = extra_state, queries, normalize(texts), batch, settings, info
    centroids = centroid_updates.without_batch(*given) if settings.leave_batch_out else None
    pool = prototypes.of_pool(params, extra_state, texts, batch.columns, network_key, centroids)
    value, parts = prime_loss.total(config, info, queries, normalize(texts), pool, batch, triplet_key)
    if settings.centroids == "momentum":  # after the loss, to avoid leaking this batch
      extra_state = {
        **extra_state,
        centroid_updates.NAME: centroid_updates.updated(extra_state, queries, batch, settings, info),
      }
    return value, parts, extra_state

  def init_from_run(source):
    """Takes the parameters that another run has, with their clusters and centroids; others start anew."""
    params, extra_state = init(jax.random.key(config.train.seed))
    if "encoder" not in source.params:
      raise UserError("it has trained no encoder; give a run of prime.py, or of another dual encoder")
    params |= {name: value for name, value in source.params.items() if name in params}
    # Copies clusters only with their table, and centroids only with the network trained on them.
    for name, owner in label_prototypes.OWNERS.items():
      if name in extra_state and owner in source.params and name in source.extra_state:
        extra_state[name] = source.extra_state[name]
    return params, extra_state

  return Method(
    init=init,
    loss=loss,
    embed_queries=lambda params, extra_state, tokens: normalize(encoder.embed(params, tokens)),
    embed_labels=lambda params, extra_state, tokens, ids: prototypes.of_labels(
      params, extra_state, encoder.embed(params, tokens), ids
    ),
    embed_texts=lambda params, extra_state, tokens, ids: normalize(encoder.embed(params, tokens)),
    extra_state_to_rank=centroid_updates.with_exact if exact else None,
    init_from_run=init_from_run,
    batch=refreshes.in_clusters(pool.batch_spec(settings), settings),
    sharding_rules=(*label_prototypes.RULES, embedding.ENCODER_RULE),
    sparse_params=prototypes.sparse_params,
    refreshes={**prototypes.refreshes, **refreshes.clusters(config)},
  )
