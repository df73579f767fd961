"""NGAME, Module I: an encoder trained on batches that are clusters (Dahiya et al., WSDM 2023).

  python -m xmc_jax.main --config=experiments/ngame.py                  # bundled data, minutes
  python -m xmc_jax.main --config=experiments/ngame.py:lf_amazontitles_131k --config.data.path=DIR

`ngame_classifier.py` trains classifiers on what this gives. Benchmark presets carry the papers' values
(the paper's: batch 1600, 300 epochs, clusters from epoch 10 on, every 5 epochs).
"""

from experiments import dexml
from experiments.common import BAG, choose

_NGAME = {
  "method.name": "ngame",
  "method.loss": "margin",
  "method.labels": "in_batch",
  "method.num_positives": 1,
  "encoder.normalize": True,
}
# The bundled set is seen for 30 epochs instead of 300, and clustered at the same shares of them.
_SHORT = {
  "method.leaves_first_epoch": 2.0,
  "method.leaves_every_epochs": 2.0,
  "method.leaf_doubling_epochs": (5, 10, 15, 20),
  "train.num_epochs": 30,
  "eval.every_epochs": 3.0,
}
_DEBIAN = {"dataset": "debian", **_NGAME, **_SHORT}


def _paper(dataset: str, **values) -> dict:
  return {
    "dataset": dataset,
    "encoder.name": "sentence-transformers/msmarco-distilbert-base-v4",
    "encoder.pooling": "mean",
    "train.batch_size": 1600,
    "train.num_epochs": 300,
    "train.learning_rate": 2e-4,
    "train.warmup_steps": 100,
    **_NGAME,
    **values,
  }


PRESETS = {
  "debian": {
    **_DEBIAN,
    **BAG,
    "train.batch_size": 512,
    "train.learning_rate": 5e-3,
  },
  "debian_minilm3": {
    **_DEBIAN,
    "encoder.num_layers": 3,
    "train.batch_size": 256,
    "train.learning_rate": 2e-4,
    "train.num_epochs": 8,
    "eval.every_epochs": 1.0,
  },
  "debian_minilm6": {
    **_DEBIAN,
    "train.batch_size": 256,
    "train.learning_rate": 2e-4,
    "train.num_epochs": 20,  # DEXA's validation P@1 still rises after 12 of them
    "eval.every_epochs": 1.0,
  },
  "lf_amazontitles_131k": _paper("lf_amazontitles_131k"),
  "lf_amazontitles_1.3m": _paper("lf_amazontitles_1.3m"),
  "lf_amazon_131k": _paper("lf_amazon_131k"),
  "lf_wikiseealso_320k": _paper("lf_wikiseealso_320k"),
  "lf_wikipedia_500k": _paper("lf_wikipedia_500k", **{"data.max_length": 256}),
}


def get_config(preset: str = ""):
  """The config of one of PRESETS."""
  return dexml.make("ngame", preset or next(iter(PRESETS)), choose(preset, PRESETS))
