"""Reads the records of a run's training: metrics.jsonl and seconds.json."""

import contextlib
import json
import math
import pathlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xmc_jax import refresh
from xmc_jax.types import Refresh


class Curve(NamedTuple):
  """Holds one quantity that was recorded during training.

  Attributes:
    steps: `[n]` int64, ascending.
    values: `[n]`, finite.
  """

  steps: np.ndarray
  values: np.ndarray


Curves = Mapping[str, Curve]


def curves(workdir: pathlib.Path) -> dict[str, Curve]:
  """Reads the curves in metrics.jsonl by name, without values that are not finite."""
  path = workdir / "metrics.jsonl"
  readings: dict[str, dict[int, float]] = {}
  for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
    # Without half a line of a killed process, and foreign lines.
    with contextlib.suppress(ValueError, TypeError, KeyError):
      line = dict(json.loads(text))
      for name, value in line.items():
        if name not in ("step", "time") and math.isfinite(value):
          readings.setdefault(name, {})[line["step"]] = value  # the last record of a step counts
  return {name: Curve(*map(np.array, zip(*sorted(values.items())))) for name, values in readings.items()}


def steps_per_epoch(recorded: Curves) -> int:
  """Returns the steps per epoch. An epoch ends with a reading of the loss; 0 if there is none yet."""
  return int(recorded["train/loss"].steps[0]) if "train/loss" in recorded else 0


def refreshed(refreshes: Mapping[str, Refresh], recorded: Curves) -> dict[str, np.ndarray]:
  """Returns the steps `[n]` int64 after which each refresh was made, for refreshes with a recorded time.

  The steps follow from the settings alone, so that a resumed run has the same steps.
  """
  per_epoch = steps_per_epoch(recorded)
  last = int(recorded["train/loss"].steps[-1]) if per_epoch else 0
  due: dict[str, list[int]] = {name: [] for name in refreshes if f"time/refresh_{name}" in recorded}
  step = 0
  while step < last:
    for name in refresh.due(refreshes, step, per_epoch):
      if name in due:
        due[name].append(step)
    step = refresh.next_due(refreshes, step, last, per_epoch)
  return {name: np.array(steps, np.int64) for name, steps in due.items() if steps}


def seconds(workdir: pathlib.Path) -> dict[str, float]:
  """Reads the time by stage from report/seconds.json, or from metrics.jsonl if the run has not ended."""
  path = workdir / "report" / "seconds.json"
  if path.exists():
    return json.loads(path.read_text(encoding="utf-8"))
  return {
    name.removeprefix("time/"): float(curve.values[-1])
    for name, curve in curves(workdir).items()
    if name.startswith("time/")
  }


def memory(recorded: Curves) -> dict[str, float]:
  """Returns the peak memory in bytes, by 'host' and 'device'."""
  return {
    name.removeprefix("memory/").removesuffix("_bytes"): float(curve.values.max())
    for name, curve in recorded.items()
    if name.startswith("memory/")
  }
