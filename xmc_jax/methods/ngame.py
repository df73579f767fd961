"""NGAME: in-batch negatives that are hard because batches are clusters (Dahiya et al., WSDM 2023). Module I.

A batch is made of small clusters of points, so that the labels of a point's neighbours are its negatives. The
current encoder makes the clusters again every few epochs. The loss takes the hardest negatives. Module II is
`methods/classifier.py`. docs/formulas.md, "Module I".
"""

import ml_collections

from xmc_jax.config import Key, declare
from xmc_jax.methods.components import dual_encoder, pool, pool_losses, refreshes
from xmc_jax.types import DatasetInfo, Method

SETTINGS = declare(
  dual_encoder.SETTINGS,
  pool.HARD_NEGATIVES,
  pool_losses.MARGIN,
  refreshes.CLUSTERS,
  loss=Key("margin", "the loss to minimise", choices=("margin", "softmax", "decoupled_softmax")),
  labels=pool.IN_BATCH,
)


def make(config: ml_collections.ConfigDict, info: DatasetInfo) -> Method:
  """Builds the method."""
  settings = config.method
  batch = refreshes.in_clusters(pool.batch_spec(settings), settings)
  method = dual_encoder.make(config, info, loss=settings.loss, batch=batch)
  return method._replace(refreshes={**method.refreshes, **refreshes.clusters(config)})
