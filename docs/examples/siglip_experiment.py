"""SigLIP on the bundled data: what would stand in experiments/siglip.py.

python -m xmc_jax.main --config=experiments/siglip.py
"""

from xmc_jax.experiments import dexml
from xmc_jax.experiments.common import BAG, choose

PRESETS = {
  "debian": {
    "dataset": "debian",
    **BAG,
    "method.name": "siglip",
    "train.batch_size": 512,
    "train.learning_rate": 5e-3,
    "train.num_epochs": 15,
    "eval.every_epochs": 1.0,
  }
}


def get_config(preset: str = ""):
  """The config of one of PRESETS."""
  return dexml.make("siglip", preset or next(iter(PRESETS)), choose(preset, PRESETS))
