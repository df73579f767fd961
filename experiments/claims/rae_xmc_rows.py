"""Rows of RAE-XMC's claim, 11: beside DEXML, each with its own preset and as many epochs."""

from xmc_jax.experiments import rae_xmc
from xmc_jax.experiments.claims.common import DEXML, short

_RAE_XMC = short(rae_xmc.PRESETS["debian"])
_WORDNET = {**_RAE_XMC, "data.path": "data/LF-WordNet-Related"}
# RAE-XMC's vectors have length 1. Label frequency gives its ranking by label texts what DEXML's raw products
# learn. The memory does not use it.
_FREQUENCY = {"eval.log_frequency": -1.0}
_BOTH = {"rae_xmc": _RAE_XMC, "rae_xmc_with_frequency": {**_RAE_XMC, **_FREQUENCY}, "dexml": DEXML}

REAL = {"memory": _BOTH}
# RAE-XMC is behind DEXML on LF-WordNet-Related. Rows there test possible causes: label frequency, and too few
# labels in a step. That of 10 epochs stands beside DEXML's of `baselines_wordnet`.
OTHER_SETS = {
  "memory_tate": {
    row: {**values, "data.path": "data/LF-TateArtworks-Subjects"} for row, values in _BOTH.items()
  },
  "memory_wordnet": {
    "rae_xmc": _WORDNET,
    "rae_xmc_with_frequency": {**_WORDNET, **_FREQUENCY},
    "rae_xmc_8_hard_negatives": {**_WORDNET, "method.num_hard_negatives": 8},
    "rae_xmc_32_hard_negatives": {**_WORDNET, "method.num_hard_negatives": 32},
    "rae_xmc_with_frequency_10_epochs": {**_WORDNET, **_FREQUENCY, "train.num_epochs": 10},
  },
}
