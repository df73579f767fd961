"""DPR: a dual encoder against the batch's own labels (Karpukhin et al., EMNLP 2020), as DEXML compares to.

  python -m xmc_jax.main --config=experiments/dpr.py                    # bundled data, MiniLM's first layer
  python -m xmc_jax.main --config=experiments/dpr.py:lf_amazontitles_131k --config.data.path=DIR

The benchmark presets are DEXML's, with the loss and the labels of DPR.
"""

from experiments import dexml
from experiments.common import choose

_DPR = {"method.name": "dpr", "method.loss": "softmax", "method.labels": "in_batch"}

PRESETS = {
  name: {**dexml.PRESETS[name], **_DPR, "method.num_positives": 1}
  for name in ("debian", "debian_minilm1", *dexml.BENCHMARKS)
}


def get_config(preset: str = ""):
  """The config of one of PRESETS."""
  return dexml.make("dpr", preset or next(iter(PRESETS)), choose(preset, PRESETS))
