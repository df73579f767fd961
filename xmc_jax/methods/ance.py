"""ANCE: DPR with hard negatives from the model's own mistakes (Xiong et al., ICLR 2021).

Softmax, or a triplet loss, over the in-batch pool and labels drawn from each point's shortlist, which is made
anew every few epochs from the embeddings of the moment.
"""

from xmc_jax.methods.components import dual_encoder
from xmc_jax.types import BatchSpec, DatasetInfo, Method

FIXED = {
  "loss": ("softmax", "margin"),
  "labels": ("in_batch",),
  "num_fresh_negatives": (0,),
  "pool_size": (0,),
}


def make(config, info: DatasetInfo) -> Method:
  """Builds the method; `config.method.num_hard_negatives` are drawn per point, at least one."""
  settings = config.method
  batch = BatchSpec(
    labels="in_batch",
    num_positives=settings.num_positives,
    num_random_negatives=settings.num_random_negatives,
    num_hard_negatives=max(1, settings.num_hard_negatives),
  )
  return dual_encoder.make(config, info, loss=settings.loss, batch=batch)
