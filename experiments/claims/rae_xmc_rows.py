"""Rows of RAE-XMC's claim, 11: beside DEXML, each with its own preset and as many epochs."""

from experiments import rae_xmc
from experiments.claims.common import DEXML, short

_RAE_XMC = short(rae_xmc.PRESETS["debian"])
_WORDNET = {**_RAE_XMC, "data.path": "data/LF-WordNet-Related"}

REAL = {"memory": {"rae_xmc": _RAE_XMC, "dexml": DEXML}}
# RAE-XMC is behind DEXML there. Its second row tests whether a step has too few labels.
WORDNET = {
  "memory_wordnet": {
    "rae_xmc": _WORDNET,
    "rae_xmc_8_hard_negatives": {**_WORDNET, "method.num_hard_negatives": 8},
  }
}
