"""NGAME, Module I: an encoder trained on batches that are clusters (Dahiya et al., WSDM 2023).

  python -m xmc_jax.main --config=experiments/ngame.py                  # bundled data, minutes
  python -m xmc_jax.main --config=experiments/ngame.py:lf_amazontitles_131k --config.data.path=DIR

`ngame_classifier.py` trains classifiers on what this gives. The benchmark presets are the authors' released
configs, one for each set; they aim at the rows of NGAME without classifiers in DEXA's Tables 2 and 3. Of
the five only LF-AmazonTitles-131K's weighs negatives by a softmax, as all presets here do
(`method.weight_temperature=0` does not): docs/dexa.md. LF-WikiTitles-500K has no released config, and takes
that of LF-AmazonTitles-131K.
"""

from xmc_jax.experiments.common import BAG, DROPOUT, FREQUENCY, config_getter

_NGAME = {
  "method.name": "ngame",
  "method.loss": "margin",
  "method.labels": "in_batch",
  "method.num_positives": 1,
  "encoder.normalize": True,
}
# The bundled set is seen for 30 epochs instead of 300, and clustered at the same shares of them.
_SHORT = {
  "method.clusters_first_epoch": 2.0,
  "method.clusters_every_epochs": 2.0,
  "method.cluster_doubling_epochs": (5, 10, 15, 20),
  "train.num_epochs": 30,
  "eval.every_epochs": 3.0,
}
_DEBIAN = {"dataset": "debian", **_NGAME, **_SHORT}


def released(dataset: str, **values) -> dict:
  """Returns what released configs of NGAME, DEXA and PRIME share, with the latter two's clusters."""
  return {
    "dataset": dataset,
    "encoder.name": "sentence-transformers/msmarco-distilbert-base-v4",
    "encoder.pooling": "mean",
    **DROPOUT,
    "train.batch_size": 1600,
    "train.num_epochs": 300,
    "train.learning_rate": 2e-4,
    "train.warmup_steps": 100,
    **_NGAME,
    **values,
  }


# By set: what its texts ask for, which DEXA takes over, and the clusters of points, of one point at first.
# Random batches end where clusters double for the first time.
LF_WIKIPEDIA = "lf_wikipedia_500k"
OF_TEXTS = {
  "lf_amazontitles_131k": {},
  "lf_amazontitles_1.3m": {},
  "lf_amazon_131k": {"train.batch_size": 350},
  "lf_wikiseealso_320k": {"train.batch_size": 350},
  "lf_wikititles_500k": {},
  LF_WIKIPEDIA: {
    "data.max_length": 256,
    "train.batch_size": 256,
    "train.num_epochs": 40,
    "method.margin_negatives": 5,
  },
}
_LATE = (50, 75, 100, 125, 150, 200)
_DOUBLING = {
  **dict.fromkeys(OF_TEXTS, (10, 20, 25, *_LATE)),
  **dict.fromkeys(("lf_amazon_131k", "lf_wikiseealso_320k"), (10, 25, *_LATE)),
  LF_WIKIPEDIA: (5, 10, 15, 20, 25, 30, 35),
}
CLUSTERS = {
  name: {
    "method.cluster_size": 1,
    "method.cluster_doubling_epochs": doubling,
    "method.clusters_first_epoch": float(doubling[0]),
  }
  for name, doubling in _DOUBLING.items()
}
_NO_DECAY = {"train.weight_decay": 0.0}  # these configs set none


PRESETS = {
  "debian": {
    **_DEBIAN,
    **BAG,
    **FREQUENCY,
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
  **{name: released(name, **texts, **CLUSTERS[name], **_NO_DECAY) for name, texts in OF_TEXTS.items()},
}
get_config = config_getter("ngame", PRESETS)
