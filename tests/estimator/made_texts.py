"""Texts whose words tell their labels, and an estimator that learns them in a second or two."""

import numpy as np

import xmc_jax

_WORDS = ["barn", "cove", "dell", "fern", "glen", "holt", "isle", "kelt", "loma", "mive", "nuxo", "pond"]
NAMES = sorted({f"{first} {second}" for first in _WORDS[:5] for second in _WORDS[6:9]})
# A small encoder that starts from random vectors.
SETTINGS = {
  "encoder.tokenizer": "train",
  "encoder.init_table": "",
  "encoder.width": 16,
  "encoder.dropout": 0.0,
  "eval.every_epochs": 0.0,
}


def make(num_texts: int = 160) -> tuple[list[str], list[list[str]]]:
  """Returns texts, and the names of their labels: each text has the words of its one to three labels."""
  rng = np.random.default_rng(5)
  labels = [sorted(rng.choice(NAMES, rng.integers(1, 4), replace=False).tolist()) for _ in range(num_texts)]
  texts = [" ".join([*rng.permutation(" ".join(names).split()), rng.choice(_WORDS)]) for names in labels]
  return texts, labels


def indicator(labels, names=NAMES) -> np.ndarray:
  """Returns `[n, L]` of 0 and 1, the labels of each text."""
  return np.array([[name in of_text for name in names] for of_text in labels], int)


def estimator(**changes) -> xmc_jax.XMCClassifier:
  """Returns an estimator that is not fitted; `changes` are parameters."""
  parameters = {"method": "dexml", "num_epochs": 4, "learning_rate": 0.02, "max_length": 16}
  parameters["settings"] = SETTINGS
  return xmc_jax.XMCClassifier(**{**parameters, **changes})
