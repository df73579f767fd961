"""Rows of UniDEC's claims, 5 and 6, and of what label frequency explains of them."""

from xmc_jax.experiments import depsl, dexa, ngame, unidec
from xmc_jax.experiments.claims.common import BAG, DEXML, DPR, RAW, SOFTMAX, UNIT, cut, short
from xmc_jax.experiments.claims.ramen_rows import RAMEN

_UNIDEC, _DEPSL = short(unidec.PRESETS["debian"]), short(depsl.PRESETS["debian"])
_ONE_WAY = {"method.symmetric": False}
# All labels in place of a pool, all else alike: against these, queries' loss is DEXML's.
_EVERY = {
  "method.labels": "all",
  "method.num_positives": 0,
  "method.num_hard_negatives": 0,
  "method.pool_size": 0,
}
_LOG_Q = {"method.log_q": True}
_WITHOUT_FREQUENCY = {**_UNIDEC, "method.log_prior": 0.0}
_BINARY = {"method.binary_weight": 1.0}
_SLOW = {**_WITHOUT_FREQUENCY, "train.table_learning_rate": 1e-3}  # classifiers at the rate of all tables

# Vectors of length 1 with label frequency beside them: α, or -1 for one chosen on validation rows.
_UNIT_VECTORS = {
  "depsl": _DEPSL,
  "ngame": cut(ngame.PRESETS["debian"], BAG),
  "dexa": cut(dexa.PRESETS["debian"], BAG),
  "dpr": {**DPR, **UNIT},
  "ramen": RAMEN,
}


def _frequency(weight: float) -> dict:
  return {"eval.log_frequency": weight}


REAL = {
  "frequency": {
    **{
      f"{name}{suffix}": {**values, **_frequency(weight)}
      for name, values in _UNIT_VECTORS.items()
      for suffix, weight in (("", 0.0), ("_with_frequency", -1.0))
    },
    **{f"depsl_alpha_{weight}": {**_DEPSL, **_frequency(weight)} for weight in (0.5, 1.0, 1.5)},
    "depsl_log_q": {**_DEPSL, **_LOG_Q},
    # Raw products can express how frequent a label is. So they show what the correction does.
    "depsl_raw": {**_DEPSL, **RAW},
    "depsl_raw_log_q": {**_DEPSL, **RAW, **_LOG_Q},
  },
  "both_heads": {  # Table 3
    "decoupled": _UNIDEC,
    "without_frequency": _WITHOUT_FREQUENCY,
    "decoupled_and_binary": {**_UNIDEC, **_BINARY},
    "slow": _SLOW,
    "slow_supcon": {**_SLOW, **SOFTMAX},
    "slow_without_hard_negatives": {**_SLOW, "method.num_hard_negatives": 0},  # Table 5
  },
  "small_pool": {  # Tables 2 and 4
    "depsl_supcon_one_way": {**_DEPSL, **SOFTMAX, **_ONE_WAY},
    "depsl_supcon": {**_DEPSL, **SOFTMAX},
    "depsl_one_way": {**_DEPSL, **_ONE_WAY},
    "depsl": _DEPSL,
    "depsl_pool_of_400": {**_DEPSL, "method.pool_size": 400},
    "depsl_all_labels": {**_DEPSL, **_EVERY},
    "depsl_all_labels_5_epochs": {**_DEPSL, **_EVERY, "train.num_epochs": 5},  # in the minutes of `depsl`
    "dexml_all_labels": DEXML,
    "dexml_all_labels_unit": {**DEXML, **UNIT},
  },
}
_TATE = {"data.path": "data/LF-TateArtworks-Subjects", "train.num_epochs": 6}
TATE = {
  "both_heads_tate": {
    "decoupled": {**_UNIDEC, **_TATE},
    "without_frequency": {**_WITHOUT_FREQUENCY, **_TATE},
    "slow": {**_SLOW, **_TATE},
    "decoupled_and_binary": {**_UNIDEC, **_BINARY, **_TATE},
  },
  "small_pool_tate": {
    row: {**REAL["small_pool"][row], **_TATE} for row in ("depsl", "depsl_all_labels", "dexml_all_labels")
  },
  "frequency_tate": {"depsl_with_frequency": {**_DEPSL, **_frequency(-1.0), **_TATE}},
}
