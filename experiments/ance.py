"""ANCE: DPR with hard negatives from shortlists (Xiong et al., ICLR 2021).

  python -m xmc_jax.main --config=experiments/ance.py                   # bundled data
  python -m xmc_jax.main --config=experiments/ance.py:lf_amazontitles_131k --config.data.path=DIR

Shortlists are made after five epochs, and every five from there. `:lf_amazontitles_1.3m` is DEXML's Table 12,
softmax with two hard negatives a query. The other benchmark presets aim at the rows "ANCE" of DEXA's Tables 2
and 3, of which no paper prints the settings: theirs are DEXML's Table 7, and two hard negatives.
"""

from xmc_jax.experiments import dpr
from xmc_jax.experiments.common import config_getter

_ANCE = {"method.name": "ance", "method.num_hard_negatives": 2}

PRESETS = {name: {**values, **_ANCE} for name, values in dpr.PRESETS.items()}
get_config = config_getter("ance", PRESETS)
