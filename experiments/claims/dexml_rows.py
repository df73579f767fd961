"""Rows of DEXML's claims: 1 to 4, and 10."""

from xmc_jax.experiments import dexml, ngame, ova
from xmc_jax.experiments.claims.common import (
  ALL_POSITIVES,
  DEXML,
  DPR,
  LIGHT,
  ONE_POSITIVE,
  SOFTMAX,
  UNIT,
  cut,
  short,
)
from xmc_jax.experiments.common import DROPOUT

# A light transformer: t* is a matter of attention, which a bag of embeddings has none of.
_SYNTHETIC = {
  "dataset": "debian",
  "encoder.num_layers": 1,
  "train.learning_rate": 1e-3,
  "data.num_validation": 0,
  "eval.every_epochs": 0.0,
  "checkpoint.every_epochs": 0.0,
}
_T_STAR = {
  **_SYNTHETIC,
  **ALL_POSITIVES,
  "data.path": "data/claims/t_star",
  "train.batch_size": 1000,
  "train.num_epochs": 24,
}
_40_EPOCHS = {"train.num_epochs": 40}
_45_EPOCHS = {"train.num_epochs": 45}
_PAIRS = {
  **_SYNTHETIC,
  "data.path": "data/claims/random_pairs_10000",
  "method.labels": "in_batch",
  "train.batch_size": 256,
  "train.num_epochs": 10,
}
# The transformer's layer would take hours with more pairs.
_BAG_OF_PAIRS = {**_PAIRS, **dexml.RAW_BAG, "encoder.num_layers": 0, "train.batch_size": 1024}
_UNIT = {**DEXML, **UNIT}
_IN_BATCH = {**DEXML, **ONE_POSITIVE, "method.labels": "in_batch"}


def _soft_top(k: int, alpha: float, values: dict) -> dict:
  """Returns a row of SoftTop-k, judged by what it is to be best in."""
  loss = {"method.loss": "soft_top_k", "method.k": float(k), "method.alpha": alpha}
  return {**values, **loss, "eval.metric": {5: "P@5", 100: "R@100"}[k]}


def _hard(count: int) -> dict:
  return {**_IN_BATCH, "method.num_hard_negatives": count, "method.shortlist_first_epoch": 5.0}


def _fresh(count: int) -> dict:
  """Returns a row with as many labels a batch as `_hard` draws at most."""
  return {**_IN_BATCH, "method.num_fresh_negatives": count * _IN_BATCH["train.batch_size"]}


_MINILM = cut(ngame.PRESETS["debian_minilm6"], LIGHT)  # labels in the batch: all of them take an hour a run

SYNTHETIC = {
  "t_star": {  # Figure 2
    "decoupled_softmax": _T_STAR,
    "softmax": {**_T_STAR, **SOFTMAX},
    "decoupled_softmax_40_epochs": {**_T_STAR, **_40_EPOCHS},
    "softmax_40_epochs": {**_T_STAR, **SOFTMAX, **_40_EPOCHS},
  },
  "random_pairs": {  # Table 10
    "in_batch": _PAIRS,
    "bag_100000": {**_BAG_OF_PAIRS, "data.path": "data/claims/random_pairs_100000"},
    "bag_1000000": {
      **_BAG_OF_PAIRS,
      "data.path": "data/claims/random_pairs_1000000",
      "train.num_epochs": 5,
    },
  },
}
REAL = {
  "losses": {  # Tables 4 and 11
    "decoupled_softmax": DEXML,
    "softmax": {**DEXML, **SOFTMAX},
    "decoupled_softmax_one_drawn": {**DEXML, **ONE_POSITIVE},
    "softmax_one_drawn": {**DEXML, **ONE_POSITIVE, **SOFTMAX},
    **{
      f"soft_top_{k}_alpha_{alpha:.0f}": _soft_top(k, alpha, DEXML)
      for k in (5, 100)
      for alpha in (1.0, 2.0, 4.0)
    },
    # Raw products have not fitted their training rows after 15 epochs.
    "decoupled_softmax_45_epochs": {**DEXML, **_45_EPOCHS},
    "soft_top_5_alpha_1_45_epochs": _soft_top(5, 1.0, {**DEXML, **_45_EPOCHS}),
    "binary": {**DEXML, "method.loss": "binary", "method.binary_prior": False},
    "unit_decoupled_softmax": _UNIT,
    **{f"unit_soft_top_{k}": _soft_top(k, 2.0, _UNIT) for k in (5, 100)},
  },
  "negatives": {  # Tables 3 and 13
    "in_batch": _IN_BATCH,
    **{f"in_batch_and_{count}_hard": _hard(count) for count in (1, 2, 5, 10)},
    # Fresh negatives are nearer and begin earlier; these two rows have one of both each.
    "in_batch_and_1_of_the_10_nearest": {**_hard(1), "method.shortlist_size": 10},
    "in_batch_and_1_hard_from_epoch_1": {**_hard(1), "method.shortlist_first_epoch": 1.0},
    **{f"in_batch_and_{count}_fresh": _fresh(count) for count in (1, 5)},
    "all_labels": {**DEXML, **ONE_POSITIVE},
  },
  "baselines": {  # Figure 7
    "dexml": DEXML,
    "ance": {**DPR, "method.name": "ance", "method.num_hard_negatives": 2},
    "dpr": DPR,
    "one_vs_all": short(ova.PRESETS["debian"]),
  },
  "priors": {
    "raw": DEXML,
    "unit": _UNIT,
    "unit_log_prior_half": {**_UNIT, "method.log_prior": 0.5},
    "unit_log_prior_1": {**_UNIT, "method.log_prior": 1.0},
    "binary": {**DEXML, "method.loss": "binary"},
  },
  "label_gradients": {
    name: {**_UNIT, "method.log_prior": 1.0, "method.label_gradients": share}
    for name, share in (("all", 1.0), ("a_quarter", 0.25), ("an_eighth", 0.125))
  },
  "dropout": {"minilm_6": _MINILM, "minilm_6_with_dropout": {**_MINILM, **DROPOUT}},
}
# The same on larger sets: LF-TateArtworks-Subjects has 35 points a label, LF-WordNet-Related two.
# There half an hour of two cores trains a row against all labels.
_ROWS_OF_WORDNET = {"priors": ("raw", "unit_log_prior_1"), "label_gradients": ("an_eighth",)}
OTHER_SETS = {
  f"{claim}_{name}": {
    row: {**values, "data.path": f"data/{folder}", "train.num_epochs": 10}
    for row, values in REAL[claim].items()
    if name == "tate" or row in _ROWS_OF_WORDNET.get(claim, REAL[claim])
  }
  for claim in ("baselines", "priors", "label_gradients")
  for name, folder in (("tate", "LF-TateArtworks-Subjects"), ("wordnet", "LF-WordNet-Related"))
}
# What more than a bag, or smaller batches, bring: docs/claims/dexml.md.
MORE_COMPUTE = {
  "more_compute": {
    "batches_of_256": short(dexml.PRESETS["debian_all"]),
    "batches_of_256_200_rows_held_out": {**short(dexml.PRESETS["debian_all"]), "data.num_validation": 200},
    "minilm_1": short(dexml.PRESETS["debian_minilm1"]),
    "minilm_1_log_prior": {**short(dexml.PRESETS["debian_minilm1"]), **UNIT, "method.log_prior": 1.0},
    "minilm_6_and_1024_random_labels": {
      **short(dexml.PRESETS["debian_pool"]),
      "train.num_epochs": 1,
      "eval.every_epochs": 0.5,
    },
  }
}
