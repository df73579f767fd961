"""PRIME, Module II: a classifier for each label, from the prototypes of a run of prime.py.

  python -m xmc_jax.main --config=experiments/prime_classifier.py --config.init_from=runs/prime-debian
  python -m xmc_jax.main --config=experiments/prime_classifier.py:paper --config.init_from=RUN --workdir=RUN2

`:paper` is the released config; it aims at the rows "PRIME (W)" of the paper's Table 4, which ranks by the
classifiers alone, as it does.
"""

from xmc_jax.experiments import ngame_classifier
from xmc_jax.experiments.common import config_getter

# As DEXA's, but for these.
_PRIME = {
  "method.margin": 0.2,
  "method.num_positives": 5,
  "method.margin_positives": 0,
  "method.margin_negatives": 100,
  "method.margin_mean": "existing",
  "method.weight_temperature": 0.1,
}
PRESETS = {name: {**values, **_PRIME} for name, values in ngame_classifier.OF_DEXA.items()}
PRESETS["paper"] |= {"train.table_learning_rate": 1e-4, "eval.scores": "classifier"}
get_config = config_getter("prime_classifier", PRESETS)
