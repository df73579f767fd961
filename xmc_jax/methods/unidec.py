"""UniDEC and DEPSL: a dual encoder and classifiers trained together on one pool (Kharbanda et al., 2024).

A batch is a leaf of a balanced tree over the points, its pool their sampled positives and hard negatives.
All true labels in the pool count, also those sampled for other points (pick-some-labels, section 3.1). One
encoder has two heads: Φ_D embeds points and label texts, Φ_C only points, scored by a classifier Ψ_l for each
label. Labels are ranked by [Φ_D(x) ⊕ n(Φ_C(x))] · [Φ_D(z_l) ⊕ n(Ψ_l)], or by one half (section 3.4).
DEPSL has no second half. docs/formulas.md, "UniDEC and DEPSL".
"""

import jax
import jax.numpy as jnp
import ml_collections

from xmc_jax.config import Key, declare
from xmc_jax.config.keys import unused
from xmc_jax.distributed import sharding
from xmc_jax.methods.components import embedding, label_priors, pool, refreshes, unidec_heads, unidec_loss
from xmc_jax.methods.components.pool_losses import SCORES, products
from xmc_jax.models import normalize
from xmc_jax.types import DatasetInfo, Method

SETTINGS = declare(
  SCORES,
  embedding.SETTINGS,
  pool.SETTINGS,
  pool.HARD_NEGATIVES,
  refreshes.CLUSTER_TIMES,
  label_priors.SETTINGS,
  checks=(
    unused("labels", "all", pool_size=0),
    unused("classifier_dim", 0, binary_weight=0.0, classifier_loss="same"),
    unused("encoder_weight", 1, binary_weight=0.0, classifier_loss="same"),
    unused("symmetric", False, encoder_query_weight=0.5, classifier_query_weight=0.5),
  ),
  loss=Key("decoupled_softmax", "the loss to minimise", choices=("decoupled_softmax", "softmax")),
  labels=Key("in_batch", "the labels of a step: the pool's, or all", choices=("in_batch", "all")),
  pool_size=Key(0, "labels of the pool, at most; 0 is all that may be sampled"),
  classifier_dim=Key(0, "width of the classifiers and of their head; 0 is none (DEPSL)"),
  classifier_loss=Key(
    "same",
    "the classifiers' loss: as method.loss, or another",
    choices=("same", "decoupled_softmax", "softmax", "binary"),
  ),
  classifier_temperature=Key(1.0, "τ_C: divides the classifiers' scores, which are raw products", above=0),
  binary_weight=Key(0.0, "weight of binary cross-entropy (with the prior log(S / P)) on classifiers' scores"),
  # At 0 the encoder, which makes clusters and negatives, would not learn.
  encoder_weight=Key(0.5, "λ: weight of the encoder's loss; 1: no classifiers", above=0, most=1),
  symmetric=Key(True, "True: the loss also has labels against the batch's queries"),
  encoder_query_weight=Key(
    0.5, "λ_D: share of queries against labels, by texts; the reverse has the rest", most=1
  ),
  classifier_query_weight=Key(0.5, "λ_C: the same share, by classifiers", most=1),
)
TABLE = "classifiers"  # in `params`: Ψ, `[L', D']`, L' = L rounded up to the devices
_DROPPED = "dropped"  # in `extra_state`: `[2]` hard negatives and positives that had no room in a pool so far


def make(config: ml_collections.ConfigDict, info: DatasetInfo) -> Method:
  """Builds the method; with `config.method.encoder_weight = 1`, or no `classifier_dim`, it is DEPSL."""
  settings = config.method
  dim = settings.classifier_dim if settings.encoder_weight < 1 else 0
  heads = unidec_heads.build(config, info, dim)
  embed_points, embed_texts = embedding.embedders(config, info)
  fills = settings.pool_size > 0 and not settings.num_hard_negatives  # then other positives do (Table 5)
  batch_spec = refreshes.in_clusters(pool.batch_spec(settings, fill_pool=fills), settings)
  bias = label_priors.bias(config, info, batch_spec)

  def init(key):
    heads_key, table_key = jax.random.split(key)
    num_rows = sharding.rounded_up(info.num_labels, info.mesh.size)
    table = {TABLE: 0.02 * jax.random.normal(table_key, (num_rows, dim))} if dim else {}
    return {**heads.init(heads_key), **table}, {_DROPPED: jnp.zeros(2)} if settings.pool_size else {}

  def loss(params, extra_state, batch, key):
    query_key, label_key = jax.random.split(key)
    queries = embed_points(heads.of_points, params, batch.queries, query_key)
    texts = embed_texts(heads.of_texts, params, batch.labels, label_key)
    scores = products(queries[:, : heads.width], texts) / settings.temperature
    scores += 0.0 if bias is None else bias[jnp.maximum(batch.columns, 0)]
    by_table = products(queries[:, heads.width :], params[TABLE]) if dim else None
    value, parts = unidec_loss.total(settings, batch, scores, by_table)
    if settings.pool_size:
      extra_state = {_DROPPED: extra_state[_DROPPED] + batch.dropped}
      parts |= dict(zip(("dropped_negatives", "dropped_positives"), extra_state[_DROPPED]))
    return value, parts, extra_state

  def embed_queries(params, extra_state, tokens):
    halves = heads.of_points(params, tokens)
    return jnp.concatenate([halves[:, : heads.width], normalize(halves[:, heads.width :])], axis=1)

  def by_text(params, extra_state, tokens, ids):
    return jnp.pad(heads.of_texts(params, tokens), ((0, 0), (0, dim)))

  def by_classifier(params, extra_state, tokens, ids):
    return jnp.pad(normalize(params[TABLE][jnp.maximum(ids, 0)]), ((0, 0), (heads.width, 0)))

  text_half = slice(heads.width)
  depsl = Method(
    init=init,
    loss=loss,
    embed_queries=embed_queries,
    embed_labels=by_text,
    batch=batch_spec,
    sharding_rules=(
      (f"(^|/){TABLE}(/|$)", (sharding.LABEL_ROWS,)),
      ("(^|/)dropped$", ()),
      embedding.ENCODER_RULE,
    ),
    refreshes={**refreshes.clusters(config, text_half), **refreshes.shortlists(config, text_half)},
  )
  unidec = depsl._replace(
    embed_labels=lambda *given: by_text(*given) + by_classifier(*given),
    sparse_params={TABLE: lambda batch, extra_state: batch.columns},
    scorers={"encoder": by_text, "classifier": by_classifier},
  )
  return label_priors.in_ranking(unidec if dim else depsl, config, info)
