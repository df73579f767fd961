"""NGAME, Module II: a classifier for each label, on the encoder of a run of ngame.py.

  python -m xmc_jax.main --config=experiments/ngame_classifier.py --config.init_from=runs/ngame-debian
  python -m xmc_jax.main --config=experiments/ngame_classifier.py:paper --config.init_from=RUN --workdir=RUN2

Encoder and data are those of that run, which may be of any dual encoder. `:debian` ranks by all sources
together, the others as the paper, which is --scores=fused: by label texts and classifiers; `encoder` and
`classifier` are one of them alone.

`:paper` and `:released` aim at the row "NGAME" of DEXML's Table 2, LF-AmazonTitles-131K. `:paper` is the
released config as it was with the paper: one positive and three negatives. `:released` is what it is today,
and what DEXA has but for its clusters of points: three positives, five negatives. For the other sets
NGAME's configs train another loss against fixed shortlists, which is not built: docs/dexa.md.
"""

from xmc_jax.experiments.common import config_getter

_CLASSIFIER = {
  "dataset": "debian",  # data.path = '': the data of `init_from`
  "method.name": "classifier",
  "method.loss": "margin",
  "method.labels": "in_batch_table",
  "method.num_positives": 0,
  "method.margin": 0.2,
  "method.margin_positives": 3,
  "method.margin_negatives": 5,
  "method.margin_mean": "all",  # as released: a positive counts as much in any row
  "method.weight_temperature": 1.0,
  "method.cluster_size": 64,
  "method.cluster_doubling_epochs": (),
  "method.clusters_first_epoch": 20.0,
  "encoder.normalize": True,
}

_LONG = {
  "train.batch_size": 2048,
  "train.num_epochs": 100,
  "train.table_learning_rate": 1e-3,
  "train.warmup_steps": 500,
  "eval.scores": "fused",
  "eval.fusion_rows": 75_000,
}
# Clusters of points in NGAME's: of one at first, from epoch 10 on of two, of 128 in the end.
_SMALL = {
  "method.cluster_size": 1,
  "method.cluster_doubling_epochs": (10, 15, 20, 25, 30, 35, 40),
  "method.clusters_first_epoch": 10.0,
}

PRESETS = {
  "debian": {
    **_CLASSIFIER,
    "train.batch_size": 1024,
    "train.num_epochs": 30,
    "train.table_learning_rate": 2e-3,
    "method.clusters_first_epoch": 6.0,
    "eval.every_epochs": 5.0,
  },
  "paper": {
    **_CLASSIFIER,
    **_LONG,
    **_SMALL,
    "train.warmup_steps": 100,
    "method.num_positives": 1,
    "method.margin_positives": 0,  # the sampled one
    "method.margin_negatives": 3,
    "method.weight_temperature": 0.1,
  },
  "released": {**_CLASSIFIER, **_LONG, **_SMALL},
}
# With clusters of points as in DEXA's released config: 64 from epoch 20 on.
OF_DEXA = {"debian": PRESETS["debian"], "paper": {**_CLASSIFIER, **_LONG}}
get_config = config_getter("ngame_classifier", PRESETS)
