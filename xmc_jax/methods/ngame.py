"""NGAME: in-batch negatives that are hard because batches are clusters (Dahiya et al., WSDM 2023). Module I.

A batch is made of small clusters of points, by the encoder as it is every few epochs, so that the labels of
a point's neighbours are its negatives. The loss looks at the hardest of them. Module II is
`methods/classifier.py`.
"""

from xmc_jax.methods.components import dual_encoder, refreshes
from xmc_jax.types import BatchSpec, DatasetInfo, Method

NO_CLUSTERS = {"num_label_clusters": (0,), "num_head_labels": (0,), "head_label_points": (0,)}
FIXED = {
  **NO_CLUSTERS,
  "loss": ("margin", "softmax", "decoupled_softmax"),
  "labels": ("in_batch",),
  "num_hard_negatives": (0,),
  "pool_size": (0,),
  "num_fresh_negatives": (0,),
}


def make(config, info: DatasetInfo) -> Method:
  """Builds the method; `config.method.margin*` are of the loss, `leaf*` of the clusters."""
  settings = config.method
  batch = BatchSpec(
    labels="in_batch",
    num_positives=settings.num_positives,
    num_random_negatives=settings.num_random_negatives,
  )
  method = dual_encoder.make(config, info, loss=settings.loss, batch=batch)
  return method._replace(
    batch=refreshes.of_leaves(method.batch, settings), refreshes=refreshes.leaves(config)
  )
