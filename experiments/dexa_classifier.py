"""DEXA, Module II: a classifier for each label, from the augmented label vectors of a run of dexa.py.

  python -m xmc_jax.main --config=experiments/dexa_classifier.py --config.init_from=runs/dexa-debian

`:paper` is the released config, for LF-AmazonTitles-131K; it aims at DEXA's rows with classifiers, in the
paper's supplement and in DEXML's Tables 1 and 2. The paper prints no settings outside that supplement.
"""

from xmc_jax.experiments import dexml, ngame_classifier
from xmc_jax.experiments.common import choose

PRESETS = ngame_classifier.OF_DEXA


def get_config(preset: str = ""):
  """The config of one of PRESETS."""
  return dexml.make("dexa_classifier", preset or next(iter(PRESETS)), choose(preset, PRESETS))
