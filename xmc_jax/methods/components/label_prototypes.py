"""Makes label prototypes by a small transformer, of text, centroid and free vector (PRIME, section 3.2).

docs/formulas.md, "PRIME".
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from xmc_jax import models
from xmc_jax.config import Key, declare
from xmc_jax.distributed import sharding
from xmc_jax.methods.components import centroid_updates, label_clusters
from xmc_jax.models import normalize
from xmc_jax.ops import lazy_adam
from xmc_jax.types import Array, Batch, DatasetInfo, PyTree, Refresh

TABLE = "free_vectors"  # in `params`: `[K', D]`, K' = K and the head labels, rounded up to the devices
NETWORK = "prototype"  # in `params`
# For each name in `extra_state`, the parameters that it belongs to: without these it is of no use.
OWNERS = {label_clusters.NAME: TABLE, centroid_updates.NAME: NETWORK}
RULES = (
  (f"(^|/)({TABLE}|{centroid_updates.NAME})(/|$)", (sharding.LABEL_ROWS,)),
  ("(^|/)prototype/", ()),
  label_clusters.RULE,
)

SETTINGS = declare(
  centroid_updates.SETTINGS,
  label_clusters.SETTINGS,
  prototype_width=Key(1024, "width of the prototype network's feed-forward layer", least=1),
  prototype_dropout=Key(0.1, "dropout at all four sites of the prototype network", below=1),
)


class Prototypes(NamedTuple):
  """Holds the functions of PRIME's label side.

  Attributes:
    init: `key -> (params, extra_state)`, the network, and what it reads beside texts.
    of_pool: `(params, extra_state, texts [S, D], labels [S], key, centroids=None) -> [S, D]`, of length 1;
      `params[TABLE]` holds the pool's rows only, `centroids` `[S, D]` replace those in `extra_state`, and
      dropout is on.
    of_labels: the same, but from the whole table and without dropout.
    sparse_params, refreshes: as in Method.
  """

  init: Callable[..., tuple[PyTree, PyTree]]
  of_pool: Callable[..., Array]
  of_labels: Callable[..., Array]
  sparse_params: Mapping[str, Callable[[Batch, PyTree], Array]]
  refreshes: Mapping[str, Refresh]


def build(config: ml_collections.ConfigDict, info: DatasetInfo, width: int) -> Prototypes:
  """Builds the label side of width D; without `num_label_clusters`, or `centroids`, it has none of these."""
  settings = config.method
  num_clusters, centroids = label_clusters.number(settings, info), settings.centroids != "none"
  network = models.PrototypeNetwork(
    settings.prototype_width, settings.prototype_dropout, models.choose_dtype(config.encoder.dtype)
  )

  def init(key):
    network_key, table_key = jax.random.split(key)
    params = {NETWORK: network.init(network_key, jnp.zeros((1, 1, width)))["params"]}
    extra_state = centroid_updates.init_state(info, width) if centroids else {}
    if num_clusters:
      params[TABLE] = label_clusters.first_vectors(table_key, num_clusters, width, info)
      extra_state |= label_clusters.init_state(info)
    return params, extra_state

  def mixed(params, extra_state, texts, labels, free_vectors, key=None, given=None):
    parts = [normalize(texts) if settings.unit_texts else texts]
    if centroids:
      parts.append(centroid_updates.lookup(extra_state, labels, info) if given is None else given)
    vectors = jnp.stack([*parts, *free_vectors], axis=1)
    if info.mesh.size > 1:  # split as texts are: else every device would make all prototypes
      vectors = jax.lax.with_sharding_constraint(vectors, NamedSharding(info.mesh, P(sharding.LABEL_ROWS)))
    made: Any = network.apply({"params": params[NETWORK]}, vectors, key)
    return normalize(made)

  def of_pool(params, extra_state, texts, labels, key, centroids=None):
    return mixed(params, extra_state, texts, labels, [params[TABLE]] if num_clusters else [], key, centroids)

  def of_labels(params, extra_state, texts, labels):
    vectors = []
    if num_clusters:
      vectors = [lazy_adam.take(params[TABLE], label_clusters.lookup(extra_state, labels), mesh=info.mesh)]
    return mixed(params, extra_state, texts, labels, vectors)

  return Prototypes(
    init=init,
    of_pool=of_pool,
    of_labels=of_labels,
    sparse_params={TABLE: lambda batch, extra_state: label_clusters.lookup(extra_state, batch.columns)}
    if num_clusters
    else {},
    refreshes={
      **(label_clusters.refreshes(config, info) if num_clusters else {}),
      **(centroid_updates.refreshes(settings) if centroids else {}),
    },
  )
