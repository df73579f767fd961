"""ANCE: DPR with hard negatives from the model's own mistakes (Xiong et al., ICLR 2021).

Softmax, or a triplet loss, over the in-batch pool and labels sampled from each point's shortlist, which is
made again every few epochs from the current embeddings (DEXML, section 5.4). docs/formulas.md, "DPR,
ANCE, OvA".
"""

import ml_collections

from xmc_jax.config import Key, declare
from xmc_jax.methods.components import dual_encoder, pool, pool_losses
from xmc_jax.types import DatasetInfo, Method

SETTINGS = declare(
  dual_encoder.SETTINGS,
  pool.HARD_NEGATIVES,
  pool_losses.MARGIN,
  loss=Key("softmax", "the loss to minimise", choices=("softmax", "margin")),
  labels=pool.IN_BATCH,
  num_hard_negatives=Key(1, "labels sampled per point from its shortlist", least=1),
)


def make(config: ml_collections.ConfigDict, info: DatasetInfo) -> Method:
  """Builds the method."""
  settings = config.method
  return dual_encoder.make(config, info, loss=settings.loss, batch=pool.batch_spec(settings))
