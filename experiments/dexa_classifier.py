"""DEXA, Module II: a classifier for each label, from the augmented label vectors of a run of dexa.py.

  python -m xmc_jax.main --config=experiments/dexa_classifier.py --config.init_from=runs/dexa-debian

The presets are those of ngame_classifier.py.
"""

from experiments import ngame_classifier

PRESETS = ngame_classifier.PRESETS


def get_config(preset: str = ""):
  """The config of one of PRESETS."""
  return ngame_classifier.make("dexa", preset)
