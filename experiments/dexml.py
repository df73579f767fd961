"""DEXML: a dual encoder trained against all labels (Gupta et al., ICLR 2024).

  python -m xmc_jax.main --config=experiments/dexml.py                  # bundled data, minutes
  python -m xmc_jax.main --config=experiments/dexml.py:debian_all       # until validation stops rising
  python -m xmc_jax.main --config=experiments/dexml.py:lf_amazontitles_131k --config.data.path=DIR

The four benchmark presets carry the paper's Table 7 (batch sizes are global).
"""

from experiments.common import BAG, choose, use_dataset
from xmc_jax import config as configs


def _paper(dataset: str, **values) -> dict:
  return {
    "dataset": dataset,
    "encoder.name": "distilbert-base-uncased",
    "encoder.pooling": "cls",
    "train.num_epochs": 100,
    "train.warmup_fraction": 0.1,
    **values,
  }


# Raw dot products suit this set: docs/dexml.md has the figures behind these presets.
_DEBIAN = {
  "dataset": "debian",
  "encoder.normalize": False,
  "method.num_positives": 0,
  "train.batch_size": 1024,
  "eval.every_epochs": 1.0,
}

_BAG = {
  **_DEBIAN,
  **BAG,
  "method.temperature": 0.03,  # a bag's mean vectors are short
  "train.learning_rate": 1e-2,
}

PRESETS = {
  "debian": {**_BAG, "train.num_epochs": 15},
  "debian_all": {
    **_BAG,
    "train.batch_size": 256,
    "train.learning_rate": 5e-3,
    "train.num_epochs": 15,
    "train.early_stop_evals": 6,
  },
  "debian_minilm1": {
    **_DEBIAN,
    "encoder.num_layers": 1,
    "encoder.embedding_dropout": 0.1,
    "method.temperature": 1.0,
    "train.learning_rate": 1e-3,
    "train.num_epochs": 12,
  },
  "minilm": {  # a start for other data: MiniLM-L6 against in-batch and random labels
    "dataset": "debian",
    "method.labels": "in_batch",
    "method.num_random_negatives": 1024,
    "train.batch_size": 256,
    "train.num_epochs": 20,
    "eval.every_epochs": 1.0,
  },
  "debian_pool": {
    **_DEBIAN,
    "method.labels": "in_batch",
    "method.num_positives": 1,
    "method.num_random_negatives": 1024,
    "method.temperature": 1.0,
    "train.batch_size": 512,
    "train.learning_rate": 2e-4,
    "train.num_epochs": 4,
  },
  "eurlex_4k": _paper(
    "eurlex_4k",
    **{
      "train.learning_rate": 2e-4,
      "train.batch_size": 1024,
      "encoder.embedding_dropout": 0.1,
      "method.label_chunk": 4096,
    },
  ),
  "lf_amazontitles_131k": _paper(
    "lf_amazontitles_131k",
    **{
      "train.learning_rate": 4e-4,
      "train.batch_size": 4096,
      "method.label_chunk": 2048,
    },
  ),
  "lf_wikipedia_500k": _paper(
    "lf_wikipedia_500k",
    **{
      "train.learning_rate": 4e-4,
      "train.batch_size": 4096,
      "encoder.embedding_dropout": 0.1,
      "method.label_chunk": 2048,
      "method.temperature": 1.0,
      "encoder.normalize": False,
    },
  ),
  "lf_amazontitles_1.3m": _paper(
    "lf_amazontitles_1.3m",
    **{
      "train.learning_rate": 8e-4,
      "train.batch_size": 8192,
      "encoder.embedding_dropout": 0.1,
      "method.label_chunk": 1024,
      "method.temperature": 1.0,
      "encoder.normalize": False,
    },
  ),
}


# The paper's data sets, the last four presets.
BENCHMARKS = ("eurlex_4k", "lf_amazontitles_131k", "lf_wikipedia_500k", "lf_amazontitles_1.3m")


def get_config(preset: str = ""):
  """The config of one of PRESETS."""
  return make("dexml", preset or next(iter(PRESETS)), choose(preset, PRESETS))


def make(method: str, preset: str, values: dict):
  """A config from a preset's values; `method` and `preset` name the run."""
  values, config = dict(values), configs.default()
  use_dataset(config, values.pop("dataset"))
  config.name = f"{method}-{preset}"
  config.update_from_flattened_dict(values)
  return config
