"""NGAME, Module II: a classifier for each label, on the encoder of a run of ngame.py.

  python -m xmc_jax.main --config=experiments/ngame_classifier.py --config.init_from=runs/ngame-debian
  python -m xmc_jax.main --config=experiments/ngame_classifier.py:paper --config.init_from=RUN --workdir=RUN2

Encoder and data are those of that run, which may be of any dual encoder. Labels are then ranked by their
texts, by their classifiers, or by both: --mode=evaluate --scores=encoder, classifier or fused.
"""

from experiments import dexml
from experiments.common import choose

_CLASSIFIER = {
  "dataset": "debian",  # data.path = '': the data of `init_from`
  "method.name": "classifier",
  "method.loss": "margin",
  "method.labels": "in_batch_table",
  "method.num_positives": 0,
  "method.margin": 0.2,
  "method.margin_positives": 3,
  "method.margin_negatives": 5,
  "method.margin_mean": "all",  # DEXA's eq. 6: a pair counts as much in any row
  "method.weight_temperature": 1.0,
  "method.leaf_size": 64,
  "method.leaf_doubling_epochs": (),
  "method.leaves_first_epoch": 20.0,
  "encoder.normalize": True,
}

PRESETS = {
  "debian": {
    **_CLASSIFIER,
    "train.batch_size": 1024,
    "train.num_epochs": 30,
    "train.table_learning_rate": 2e-3,
    "method.leaves_first_epoch": 6.0,
    "eval.every_epochs": 5.0,
  },
  "paper": {  # the paper's
    **_CLASSIFIER,
    "train.batch_size": 2048,
    "train.num_epochs": 100,
    "train.table_learning_rate": 1e-3,
    "train.warmup_steps": 500,
    "eval.fusion_rows": 75_000,
  },
}


def get_config(preset: str = ""):
  """The config of one of PRESETS."""
  return make("ngame", preset)


def make(family: str, preset: str):
  """The same for another family, whose name the run's folder has."""
  return dexml.make(f"{family}_classifier", preset or next(iter(PRESETS)), choose(preset, PRESETS))
