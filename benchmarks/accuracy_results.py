"""Result files of benchmarks/accuracy.py: metrics, their intervals, paired differences to XR-Linear."""

import json
import pathlib
from typing import NamedTuple

import numpy as np

from xmc_jax import data, metrics
from xmc_jax.storage import atomic

KEPT = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@10", "R@100")
DEPTH = 100  # labels of each point
REFERENCE = "xr_linear"
_KS = (1, 3, 5, 10, 100)


class Result(NamedTuple):
  """Holds the outputs of a finished row of one seed.

  Attributes:
    ids: `[n, DEPTH]`, the test points' labels, best first, padded with -1.
    fit_seconds, test_seconds: wall-clock times.
    peak_bytes: peak resident memory; 0 is unknown.
    settings: the settings used, for readers of the file.
  """

  ids: np.ndarray
  fit_seconds: float
  test_seconds: float
  peak_bytes: int
  settings: dict


class Judge:
  """Computes the metrics of all rankings of a data set's test points in the same way."""

  def __init__(self, dataset: data.Dataset, settings):
    """Takes the depth and the propensity constants from `settings`, a config's `eval`."""
    inverse = metrics.inverse_propensity(dataset.train.truth, settings.propensity_a, settings.propensity_b)
    self._truth = dataset.test.unfiltered_positives
    self._with = {"ks": tuple(k for k in _KS if k <= settings.k), "inverse_propensity": inverse}

  def outcome(self, seed: int, result: Result, machine: str, reference: np.ndarray | None) -> dict:
    """Builds a seed's part of a row's file; `reference` is XR-Linear's ids `[n, DEPTH]`, if there are any."""
    means = metrics.evaluate(result.ids, self._truth, **self._with)
    intervals = metrics.bootstrap_intervals(result.ids, self._truth, seed=0, **self._with)
    names = [name for name in KEPT if name in means]
    found = {
      "seed": seed,
      "metrics": {name: round(means[name], 5) for name in names},
      "intervals_95": {name: [round(bound, 5) for bound in intervals[name]] for name in names},
      "fit_seconds": round(result.fit_seconds, 2),
      "test_seconds": round(result.test_seconds, 2),
      "peak_GB": round(result.peak_bytes / 1e9, 3) or None,
      "machine": machine,
    }
    if reference is not None:
      differences = metrics.paired_differences([reference, result.ids], self._truth, seed=0, **self._with)[0]
      rounded = lambda numbers: [round(number, 5) for number in numbers]
      found[f"to_{REFERENCE}"] = {name: rounded(differences[name][:3]) for name in names}
    return found


def keep(path: pathlib.Path, row: dict, outcome: dict) -> None:
  """Writes a seed's outcome, in place of an earlier one, beside what all seeds of the row share."""
  others = [seed for seed in read(path).get("seeds", ()) if seed["seed"] != outcome["seed"]]
  kept = {**row, "seeds": sorted([*others, outcome], key=lambda seed: seed["seed"])}
  path.parent.mkdir(parents=True, exist_ok=True)
  atomic.write_text(path, json.dumps(kept, indent=1) + "\n")


def read(path: pathlib.Path) -> dict:
  """Reads a row's file; returns {} if there is none."""
  return json.loads(path.read_text()) if path.exists() else {}


def seed_of(kept: dict, seed: int) -> dict:
  """Returns the outcome of a seed in a row's file; {} if it has none."""
  return next((found for found in kept.get("seeds", ()) if found["seed"] == seed), {})
