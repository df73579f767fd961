"""DPR: a dual encoder trained against the batch's own labels (Karpukhin et al., EMNLP 2020).

Softmax over the in-batch pool, one drawn positive per point; DEXML's first baseline (its section 5.1).
"""

from xmc_jax.contract import BatchSpec, DatasetInfo, Method
from xmc_jax.methods import dual_encoder

FIXED = {
  "loss": ("softmax",),
  "labels": ("in_batch",),
  "num_hard_negatives": (0,),
  "pool_size": (0,),
  "num_fresh_negatives": (0,),
}


def make(config, info: DatasetInfo) -> Method:
  """Builds the method; of `config.method` it uses temperature, chunks, dropout and the random negatives."""
  batch = BatchSpec(labels="in_batch", num_random_negatives=config.method.num_random_negatives)
  return dual_encoder.make(config, info, loss="softmax", batch=batch)
