"""DEXML's claims 1 to 4 as configs (METHODS, section 7); `run.py` trains them and writes docs/results/.

python -m xmc_jax.main --config=experiments/claims/presets.py:losses-softmax
"""

from experiments import dexml
from experiments.common import choose

# A light transformer: t* is a matter of attention, which a bag of embeddings has none of.
_SYNTHETIC = {
  "dataset": "debian",
  "encoder.num_layers": 1,
  "train.learning_rate": 1e-3,
  "data.num_validation": 0,
  "eval.every_epochs": 0.0,
  "checkpoint.every_epochs": 0.0,
}
# All positives at once: of one drawn positive, with the others left out, both losses are the same.
_T_STAR = {
  **_SYNTHETIC,
  "data.path": "data/claims/t_star",
  "method.num_positives": 0,
  "train.batch_size": 1000,
  "train.num_epochs": 24,
}
_PAIRS = {
  **_SYNTHETIC,
  "data.path": "data/claims/random_pairs_10000",
  "method.labels": "in_batch",
  "train.batch_size": 256,
  "train.num_epochs": 10,
}
_DEBIAN = {**dexml.PRESETS["debian"], "checkpoint.every_epochs": 0.0, "eval.every_epochs": 3.0}
_IN_BATCH = {**_DEBIAN, "method.labels": "in_batch", "method.num_positives": 1}


def _hard(count: int) -> dict:
  return {**_IN_BATCH, "method.num_hard_negatives": count, "method.shortlist_first_epoch": 5.0}


def _fresh(count: int) -> dict:
  """As many labels a batch as `_hard` draws at most."""
  return {**_IN_BATCH, "method.num_fresh_negatives": count * _IN_BATCH["train.batch_size"]}


# Claim by claim, the rows of its table: what stands there, and the settings.
CLAIMS = {
  "t_star": {
    "decoupled_softmax": _T_STAR,
    "softmax": {**_T_STAR, "method.loss": "softmax"},
  },
  "random_pairs": {"in_batch": _PAIRS},
  "losses": {
    "decoupled_softmax": _DEBIAN,
    "softmax": {**_DEBIAN, "method.loss": "softmax"},
    "soft_top_5": {**_DEBIAN, "method.loss": "soft_top_k", "method.k": 5.0, "method.alpha": 1.0},
    "soft_top_100": {**_DEBIAN, "method.loss": "soft_top_k", "method.k": 100.0, "method.alpha": 1.0},
    "binary": {**_DEBIAN, "method.loss": "binary"},
  },
  "negatives": {
    "in_batch": _IN_BATCH,
    **{f"in_batch_and_{count}_hard": _hard(count) for count in (1, 2, 5, 10)},
    **{f"in_batch_and_{count}_fresh": _fresh(count) for count in (1, 5)},
    "all_labels": {**_DEBIAN, "method.num_positives": 1},
  },
}
PRESETS = {f"{claim}-{row}": values for claim, rows in CLAIMS.items() for row, values in rows.items()}


def get_config(preset: str = ""):
  """The config of one of PRESETS."""
  return dexml.make("claims", preset or next(iter(PRESETS)), choose(preset, PRESETS))
