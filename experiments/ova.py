"""One-versus-all: an encoder and a linear layer over all labels, trained together (DEXML, section 5.2).

  python -m xmc_jax.main --config=experiments/ova.py                    # bundled data
  python -m xmc_jax.main --config=experiments/ova.py:lf_amazontitles_131k --config.data.path=DIR

Label texts are not read. The benchmark presets aim at the rows "DistilBERT OvA Classifier" of DEXML's
Tables 1 and 2. That paper prints no settings of this classifier: encoder, lengths, batches and epochs are
those that its Table 7 gives to DEXML. The table's rate of 1e-3, raw products with a temperature of 1, and
where weights and bias start (the bias at the log of a label's share, 1 / L) are ours.
"""

from xmc_jax.experiments import dexml
from xmc_jax.experiments.common import beside_method, config_getter

_OVA = {
  "method.name": "ova",
  "method.loss": "binary",
  "method.labels": "table",
  "method.temperature": 1.0,
  "encoder.normalize": False,
}
_BUNDLED = {**_OVA, "train.table_learning_rate": 1e-2}  # the bag's rate

PRESETS = {
  **{name: {**beside_method(dexml.PRESETS[name]), **_BUNDLED} for name in ("debian", "debian_minilm1")},
  **{
    name: {**beside_method(dexml.PRESETS[name]), **_OVA, "train.table_learning_rate": 1e-3}
    for name in dexml.BENCHMARKS
  },
}
get_config = config_getter("ova", PRESETS)
