"""DEXA, Module II: a classifier for each label, from the augmented label vectors of a run of dexa.py.

  python -m xmc_jax.main --config=experiments/dexa_classifier.py --config.init_from=runs/dexa-debian

`:paper` is the released config, for LF-AmazonTitles-131K; it aims at DEXA's rows with classifiers, in the
paper's supplement and in DEXML's Tables 1 and 2. The paper prints no settings outside that supplement.
"""

from xmc_jax.experiments import ngame_classifier
from xmc_jax.experiments.common import config_getter

PRESETS = ngame_classifier.OF_DEXA
get_config = config_getter("dexa_classifier", PRESETS)
