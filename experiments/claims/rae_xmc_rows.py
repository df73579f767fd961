"""Rows of RAE-XMC's claim, 11: beside DEXML, each with its own preset and as many epochs."""

from experiments import rae_xmc
from experiments.claims.common import DEXML, short

_RAE_XMC = short(rae_xmc.PRESETS["debian"])
_WORDNET = {**_RAE_XMC, "data.path": "data/LF-WordNet-Related"}
# Its vectors have length 1. With label frequency, the ranking by label texts has what raw products learn.
_FREQUENCY = {"eval.log_frequency": -1.0}

REAL = {"memory": {"rae_xmc": _RAE_XMC, "rae_xmc_with_frequency": {**_RAE_XMC, **_FREQUENCY}, "dexml": DEXML}}
# RAE-XMC is behind DEXML there. Its other rows test two causes: a step has too few labels, and frequency.
WORDNET = {
  "memory_wordnet": {
    "rae_xmc": _WORDNET,
    "rae_xmc_with_frequency": {**_WORDNET, **_FREQUENCY},
    "rae_xmc_8_hard_negatives": {**_WORDNET, "method.num_hard_negatives": 8},
  }
}
