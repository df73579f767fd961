"""Declares the settings of a batch's pool of labels, which methods share, and makes a BatchSpec of them."""

from collections.abc import Iterator, Mapping
from typing import Any

import ml_collections

from xmc_jax.config import Key, declare
from xmc_jax.config.keys import unused
from xmc_jax.types import BatchSpec


def _shortlist_faults(values: Mapping) -> Iterator[str]:
  hard, listed = values["method.num_hard_negatives"], values["method.shortlist_size"]
  if hard > listed:
    yield (
      f"method.num_hard_negatives = {hard} is more than method.shortlist_size = {listed}; "
      f"set --config.method.shortlist_size={hard}"
    )


IN_BATCH = Key(
  "in_batch", "the labels of a step: the batch's sampled positives and added negatives", choices=("in_batch",)
)
POSITIVES = declare(
  checks=(unused("num_positives", 0, positive_sampling="uniform"),),
  num_positives=Key(1, "positives sampled per point and step; 0 takes all of them"),
  positive_sampling=Key(
    "uniform",
    "how positives are sampled; by inverse propensity rare labels come more often",
    choices=("uniform", "inverse_propensity"),
  ),
)
SETTINGS = declare(
  POSITIVES,
  checks=(unused("labels", "all", num_random_negatives=0),),
  num_random_negatives=Key(0, "labels added to an in-batch pool, sampled uniformly"),
)
HARD_NEGATIVES = declare(
  checks=(unused("labels", "all", num_hard_negatives=0), _shortlist_faults),
  num_hard_negatives=Key(0, "labels added to an in-batch pool, sampled per point from its shortlist"),
  shortlist_size=Key(100, "nearest labels of each training point, true ones left out", least=1),
  shortlist_backend=Key(
    "auto", "the search; auto chooses by size and device", choices=("auto", "exact", "scann")
  ),
  shortlist_first_epoch=Key(5.0, "no hard negatives before this epoch"),
  shortlist_every_epochs=Key(5.0, "epochs between shortlists; 0 makes them once"),
  shortlist_every_steps=Key(0, "instead of shortlist_every_epochs, if not 0"),
)


_FIELDS = ("labels", *SETTINGS.keys, "num_hard_negatives", "num_fresh_negatives", "pool_size")


def batch_spec(settings: ml_collections.ConfigDict, **more: Any) -> BatchSpec:
  """Returns how batches are built, by the pool's settings that a method has; `more` overrides them."""
  return BatchSpec(**{name: settings[name] for name in _FIELDS if name in settings} | more)
