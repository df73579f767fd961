"""Describes metrics, rankings, stages and settings in words."""

import json

import ml_collections

from xmc_jax import config as configs
from xmc_jax.config.checks import flatten
from xmc_jax.metrics import FAMILIES

METRICS = {name: family.meaning for name, family in FAMILIES.items()} | {
  "coverage": "of all labels, how many are rightly found for some point",
}
RANKINGS = {
  "hybrid": "all others joined; predictions use it",
  "fused": "encoder and classifier joined",
  "encoder": "similarity of text and label",
  "classifier": "a classifier for each label",
  **configs.SOURCES,
}
_STAGES = {
  "prepare": "preparing data",
  "restore": "making or restoring the state",
  "freeze": "embedding under a frozen encoder",
  "compile": "compiling",
  "train": "training steps",
  "refit": "training again on all rows",
  "evaluate": "validation",
  "save": "saving",
  "fuse": "fitting the fusion of scores",
  "hybrid": "fitting the hybrid ranker",
  "test": "ranking test points",
}


def stage(name: str) -> str:
  """Returns a description of a stage."""
  if name.startswith("refresh_"):
    return f"refresh of {name.removeprefix('refresh_')}"
  return _STAGES.get(name, name)


def settings(config: ml_collections.ConfigDict) -> dict[str, str]:
  """Returns every setting as JSON, but those of `plan`, which stand for no run."""
  flat = flatten(config.to_dict())
  return {
    key: json.dumps(value, ensure_ascii=False)
    for key, value in sorted(flat.items())
    if not key.startswith("plan.")
  }
