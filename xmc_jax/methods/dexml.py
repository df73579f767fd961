"""DEXML: a dual encoder trained against all labels (Gupta et al., ICLR 2024).

One shared encoder embeds points and label texts; the loss of a point runs over every label (eq. 5, 6), or
over the batch's sampled positives with random labels, hard negatives (section 5.4) or fresh ones (section
C.3) added. Decoupled softmax and softmax sample one positive of a point in each step, SoftTop-k at
least k, as the released code does; the paper's equations sum over all. Binary cross-entropy takes all.
docs/formulas.md, "DEXML and its baselines".
"""

import ml_collections

from xmc_jax.batching.positives import num_sampled
from xmc_jax.config import Key, declare
from xmc_jax.config.keys import unused
from xmc_jax.methods.components import dual_encoder, pool
from xmc_jax.types import DatasetInfo, Method

SETTINGS = declare(
  dual_encoder.SETTINGS,
  pool.HARD_NEGATIVES,
  checks=(unused("labels", "all", num_fresh_negatives=0),),
  loss=Key(
    "decoupled_softmax",
    "the loss to minimise",
    choices=("decoupled_softmax", "softmax", "soft_top_k", "binary"),
  ),
  labels=Key(
    "all",
    "the labels of a step: all, or the batch's sampled positives and added negatives",
    choices=("all", "in_batch"),
  ),
  label_gradients=Key(
    1.0,
    "share of the labels that a step backpropagates through, sampled by their vectors' gradients; below 1 "
    "uncached_tokens has no effect; 1 is the paper's",
    above=0,
    most=1,
  ),
  num_fresh_negatives=Key(
    0,
    "labels that a step adds to an in-batch pool, by their gradients under a cache of all labels",
  ),
  binary_prior=Key(True, "binary: subtracts log(labels per positive) from scores; False is the paper's"),
  k=Key(5.0, "soft_top_k: number of labels at the top", above=0),
  alpha=Key(2.0, "soft_top_k: α, the sharpness", above=0),
)


def make(config: ml_collections.ConfigDict, info: DatasetInfo) -> Method:
  """Builds the method; `config.method` and `config.encoder` hold its settings."""
  settings = config.method
  options = {"k": settings.k, "alpha": settings.alpha} if settings.loss == "soft_top_k" else {}
  batch = pool.batch_spec(
    settings,
    num_positives=num_sampled(settings),
    num_fresh_negatives=min(settings.num_fresh_negatives, info.num_labels),
  )
  share = settings.label_gradients
  return dual_encoder.make(config, info, loss=settings.loss, batch=batch, label_gradients=share, **options)
