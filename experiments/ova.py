"""One-versus-all: an encoder and a linear layer over all labels, trained together (DEXML, section 5.1).

  python -m xmc_jax.main --config=experiments/ova.py                    # bundled data
  python -m xmc_jax.main --config=experiments/ova.py:lf_amazontitles_131k --config.data.path=DIR

Label texts are not read.
"""

from experiments import dexml
from experiments.common import choose

_OVA = {
  "method.name": "ova",
  "method.loss": "binary",
  "method.labels": "table",
  "method.num_positives": 0,
  "method.temperature": 1.0,
  "encoder.normalize": False,
  "train.table_learning_rate": 1e-2,
}

PRESETS = {name: {**dexml.PRESETS[name], **_OVA} for name in ("debian", "debian_minilm1", *dexml.BENCHMARKS)}


def get_config(preset: str = ""):
  """The config of one of PRESETS."""
  return dexml.make("ova", preset or next(iter(PRESETS)), choose(preset, PRESETS))
