"""What the rows of several claims share."""

from xmc_jax.experiments import dexml

# Nothing is saved on the way: of the best epoch and of the last there is a checkpoint all the same.
_SHORT = {"checkpoint.every_epochs": 0.0}
CURVES = {"eval.every_epochs": 1.0}
SOFTMAX = {"method.loss": "softmax"}
UNIT = {"encoder.normalize": True, "method.temperature": 0.05}
RAW = {name: dexml.RAW_BAG[name] for name in ("encoder.normalize", "method.temperature")}

DEXML = {**dexml.RAW_BAG, "train.num_epochs": 15, **_SHORT, **CURVES}
ALL_POSITIVES, ONE_POSITIVE = {"method.num_positives": 0}, {"method.num_positives": 1}
DPR = {**DEXML, **ONE_POSITIVE, **SOFTMAX, "method.name": "dpr", "method.labels": "in_batch"}

# Label frequency in ranking, which no paper has; PRIME's pairs of T, which its rows are about.
_LEFT_OUT = ("eval.log_frequency", "method.triplet_positives")

# NGAME, DEXA, PRIME and RAMEN, cut short: clusters of points act from the first third on.
_SWEEP = {
  **_SHORT,
  "method.clusters_first_epoch": 1.0,
  "method.clusters_every_epochs": 1.0,
  "method.cluster_doubling_epochs": (2, 4, 8),
}
BAG = {**_SWEEP, "train.num_epochs": 15, **CURVES}
LIGHT = {**_SWEEP, "train.num_epochs": 4, **CURVES}


def cut(values: dict, by: dict) -> dict:
  """Returns a preset with these values, ranked as papers rank: with the keys' own defaults of _LEFT_OUT."""
  return {**{key: value for key, value in values.items() if key not in _LEFT_OUT}, **by}


def short(values: dict) -> dict:
  """Returns a preset as claims train it: validated after each epoch, and saved at the end."""
  return cut(values, {**_SHORT, **CURVES})
