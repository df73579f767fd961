"""DPR: a dual encoder trained against the batch's own labels (Karpukhin et al., EMNLP 2020).

Softmax over the in-batch pool: a point's other labels count as negatives where they are in it. By default one
positive is drawn per point.
"""

from xmc_jax.methods.components import dual_encoder
from xmc_jax.types import BatchSpec, DatasetInfo, Method

FIXED = {
  "loss": ("softmax",),
  "labels": ("in_batch",),
  "num_hard_negatives": (0,),
  "pool_size": (0,),
  "num_fresh_negatives": (0,),
}


def make(config, info: DatasetInfo) -> Method:
  """Builds the method; of `config.method` it uses the numbers of positives and random negatives."""
  settings = config.method
  batch = BatchSpec(
    labels="in_batch",
    num_positives=settings.num_positives,
    num_random_negatives=settings.num_random_negatives,
  )
  return dual_encoder.make(config, info, loss="softmax", batch=batch)
