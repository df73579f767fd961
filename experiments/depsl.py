"""DEPSL: the dual encoder of UniDEC alone, no classifiers (Kharbanda et al., 2024).

  python -m xmc_jax.main --config=experiments/depsl.py                  # bundled data, minutes
  python -m xmc_jax.main --config=experiments/depsl.py:lf_amazontitles_1.3m --config.data.path=DIR

A pool of some thousand labels a batch stands for all of them: compare with `dexml.py`. On short texts the
paper takes queries against labels alone, on long texts both ways (`method.symmetric`).
"""

from experiments import dexml, unidec
from experiments.common import choose

_DEPSL = {"method.encoder_weight": 1.0, "method.classifier_dim": 0, "method.binary_weight": 0.0}
_ONE_WAY = {"method.symmetric": False}
# The paper's settings (UniDEC, Kharbanda et al. 2024).
_PAPER = {"encoder.projection_dim": 512}
_OWN = {
  "lf_amazontitles_131k": _ONE_WAY,
  "lf_amazontitles_1.3m": {
    **_ONE_WAY,
    "encoder.projection_dim": 384,
    "method.pool_size": 4000,
    "train.batch_size": 2200,
  },
}

PRESETS = {
  name: {**values, **_DEPSL, **(_PAPER if name.startswith("lf_") else {}), **_OWN.get(name, {})}
  for name, values in unidec.PRESETS.items()
}


def get_config(preset: str = ""):
  """The config of one of PRESETS."""
  return dexml.make("depsl", preset or next(iter(PRESETS)), choose(preset, PRESETS))
