"""DEXML: a dual encoder trained against all labels (Gupta et al., ICLR 2024).

One shared encoder embeds points and label texts; the loss of a point runs over
every label (eq. 5, 6), or over the batch's drawn positives with random labels, hard
negatives (section 5.4) or fresh ones (section C.3) added. Decoupled softmax and softmax draw
one positive of a point in each step, SoftTop-k so many as it has places; binary cross-entropy takes all.
"""

from xmc_jax.batching.positives import num_drawn
from xmc_jax.methods.components import dual_encoder
from xmc_jax.types import BatchSpec, DatasetInfo, Method

FIXED = {
  "labels": ("all", "in_batch"),
  "loss": ("decoupled_softmax", "softmax", "soft_top_k", "binary"),
  "pool_size": (0,),
}


def make(config, info: DatasetInfo) -> Method:
  """Builds the method; `config.method` and `config.encoder` hold its settings."""
  settings = config.method
  options = {"k": settings.k, "alpha": settings.alpha} if settings.loss == "soft_top_k" else {}
  batch = BatchSpec(
    labels=settings.labels,
    num_positives=num_drawn(settings),
    num_random_negatives=settings.num_random_negatives,
    num_hard_negatives=settings.num_hard_negatives,
    num_fresh_negatives=min(settings.num_fresh_negatives, info.num_labels),
  )
  return dual_encoder.make(config, info, loss=settings.loss, batch=batch, **options)
