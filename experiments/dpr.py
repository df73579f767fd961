"""DPR: a dual encoder against the batch's own labels, by softmax (Karpukhin et al., EMNLP 2020).

  python -m xmc_jax.main --config=experiments/dpr.py                    # bundled data, a bag
  python -m xmc_jax.main --config=experiments/dpr.py:lf_amazontitles_131k --config.data.path=DIR

The benchmark presets aim at the rows "DPR" of DEXA's Tables 2 and 3 and UniDEC's Table 1, of which no paper
prints more than the encoder, a 12-layer BERT in UniDEC. They are DEXML's Table 7, DistilBERT too, with the
loss and the labels of DPR: not those rows' own.
"""

from xmc_jax.experiments import dexml
from xmc_jax.experiments.common import config_getter

_DPR = {"method.name": "dpr", "method.loss": "softmax", "method.labels": "in_batch"}

PRESETS = {
  name: {**dexml.PRESETS[name], **_DPR, "method.num_positives": 1}
  for name in ("debian", "debian_minilm1", *dexml.BENCHMARKS)
}
PRESETS["debian"]["method.log_q"] = True  # frequent labels are in most pools: else, their scores are too low
get_config = config_getter("dpr", PRESETS)
