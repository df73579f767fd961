"""SigLIP on the bundled data: what would stand in experiments/siglip.py.

python -m xmc_jax.main --config=experiments/siglip.py
"""

from xmc_jax.experiments.common import BAG, config_getter

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
get_config = config_getter("siglip", PRESETS)
