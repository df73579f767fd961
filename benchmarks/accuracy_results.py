"""A row of benchmarks/accuracy.py as a file: metrics, their intervals, paired differences to XR-Linear."""

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
_SLACK = 1e-6  # between a metric counted here and the same one in a run's report


class Result(NamedTuple):
  """What a finished row of one seed is made of.

  Attributes:
    ids: `[n, DEPTH]`, the test points' labels, best first, padded with -1.
    fit_seconds, test_seconds: by the clock.
    peak_bytes: of resident memory; 0 is unknown.
    settings: as they were used, for the reader.
    reported: the same metrics from elsewhere, to be compared; may lack any.
  """

  ids: np.ndarray
  fit_seconds: float
  test_seconds: float
  peak_bytes: int
  settings: dict
  reported: dict[str, float]


class Judge:
  """Counts every ranking of a data set's test points alike."""

  def __init__(self, dataset: data.Dataset, settings):
    """`settings` is a config's `eval`: its depth and propensity constants count."""
    inverse = metrics.inverse_propensity(dataset.train.truth, settings.propensity_a, settings.propensity_b)
    self._truth = dataset.test.counted
    self._with = {"ks": tuple(k for k in _KS if k <= settings.k), "inverse_propensity": inverse}

  def outcome(self, seed: int, result: Result, machine: str, reference: np.ndarray | None) -> dict:
    """A seed's part of a row's file.

    Args:
      seed: which one.
      result: of this seed.
      machine: that it ran on.
      reference: XR-Linear's ids `[n, DEPTH]`, or None, where there are none or the row is XR-Linear itself.

    Raises:
      ValueError: a reported metric is another than the one counted here.
    """
    means = metrics.evaluate(result.ids, self._truth, **self._with)
    for name in KEPT:
      reported = result.reported.get(name, means.get(name))
      if name in means and abs(means[name] - reported) > _SLACK:
        raise ValueError(f"{name}: {means[name]:.6f} counted here, and {reported:.6f} in the run's report")
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
      found[f"to_{REFERENCE}"] = {
        name: [round(number, 5) for number in differences[name][:3]] for name in names
      }
    return found


def keep(path: pathlib.Path, row: dict, outcome: dict) -> None:
  """Puts a seed's outcome into a row's file, in place of what stood there for it.

  Args:
    path: docs/results/accuracy/SET/ROW.json.
    row: what all its seeds share: 'what', 'set', 'test_points', 'asked', 'settings'.
    outcome: as `Judge.outcome` makes it.
  """
  others = [seed for seed in read(path).get("seeds", ()) if seed["seed"] != outcome["seed"]]
  kept = {**row, "seeds": sorted([*others, outcome], key=lambda seed: seed["seed"])}
  path.parent.mkdir(parents=True, exist_ok=True)
  atomic.write_text(path, json.dumps(kept, indent=1) + "\n")


def read(path: pathlib.Path) -> dict:
  """A row's file; {} where it has none."""
  return json.loads(path.read_text()) if path.exists() else {}


def seed_of(kept: dict, seed: int) -> dict:
  """The outcome of a seed in a row's file; {} where it has none."""
  return next((found for found in kept.get("seeds", ()) if found["seed"] == seed), {})
