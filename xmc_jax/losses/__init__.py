"""Computes losses over a row of scores: one query against its pool of labels.

Every function takes scores `[..., L]` and labels `[..., L]`, reads only the
entries that `where` marks as real, and returns one number per row, unreduced;
`pick_some_labels` reduces any of them over a batch. docs/formulas.md, "Losses over
a row of scores", lists them all in one notation, with their papers.
"""

from xmc_jax.losses._hard_negatives import HardNegatives, hardest_negatives
from xmc_jax.losses.binary import binary
from xmc_jax.losses.decoupled import decoupled_softmax
from xmc_jax.losses.dynamic_margin import dynamic_margin, dynamic_margin_from_positives
from xmc_jax.losses.margin import margin, margin_from_positives
from xmc_jax.losses.pick_some_labels import pick_some_labels
from xmc_jax.losses.soft_top_k import log_soft_top_k, soft_top_k, soft_top_k_loss
from xmc_jax.losses.softmax import softmax

__all__ = [
  "HardNegatives",
  "binary",
  "decoupled_softmax",
  "dynamic_margin",
  "dynamic_margin_from_positives",
  "hardest_negatives",
  "log_soft_top_k",
  "margin",
  "margin_from_positives",
  "pick_some_labels",
  "soft_top_k",
  "soft_top_k_loss",
  "softmax",
]
