"""RAMEN, Module II: a classifier for each label, on the encoder of a run of ramen.py.

  python -m xmc_jax.main --config=experiments/ramen_classifier.py --config.init_from=runs/ramen-debian

2 positives and 12 negatives a point are the paper's (Table 10); the rest of `:paper` is that of
dexa_classifier.py, as RAMEN's paper says nothing else of it. It aims at no row: the paper has classifiers in
its method, and does not say which rows of its Table 6 have them. No graph is read.
"""

from xmc_jax.experiments import ngame_classifier
from xmc_jax.experiments.common import config_getter

PRESETS = {
  name: {**values, "method.margin_positives": 2, "method.margin_negatives": 12}
  for name, values in ngame_classifier.OF_DEXA.items()
}
get_config = config_getter("ramen_classifier", PRESETS)
