"""Trains what the time allows: several methods one after another, combined.

  python -m xmc_jax.main --config=experiments/auto.py                   # bundled data, ten minutes at most
  python -m xmc_jax.main --config=experiments/auto.py --config.auto.minutes=60 --config.data.path=DIR

It chooses methods and epochs itself, and trains bags. Keys of data, devices and checkpoints are yours.
"""

from xmc_jax.experiments.common import config_getter

PRESETS = {"debian": {"dataset": "debian", "auto.minutes": 10.0}}
get_config = config_getter("auto", PRESETS)
