"""DPR: a dual encoder trained against the batch's own labels (Karpukhin et al., EMNLP 2020).

Softmax over the in-batch pool: a point's other labels in the pool count as negatives (DEXML, eq. 4).
By default one positive is sampled per point. As XMC papers compare with DPR (UniDEC, section 4.1), points and
labels share one encoder, and there are no BM25 negatives. docs/formulas.md, "DPR, ANCE, OvA".
"""

import ml_collections

from xmc_jax.config import Key, declare
from xmc_jax.methods.components import dual_encoder, pool
from xmc_jax.types import DatasetInfo, Method

SETTINGS = declare(
  dual_encoder.SETTINGS,
  loss=Key("softmax", "the loss to minimise", choices=("softmax",)),
  labels=pool.IN_BATCH,
)


def make(config: ml_collections.ConfigDict, info: DatasetInfo) -> Method:
  """Builds the method; of `config.method` it uses the numbers of positives and random negatives."""
  return dual_encoder.make(config, info, loss="softmax", batch=pool.batch_spec(config.method))
