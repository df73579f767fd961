"""Reads the records of a run's training: metrics.jsonl and seconds.json."""

import json
import math
import pathlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xmc_jax import refresh
from xmc_jax.types import Refresh

# Prefixes of names that a page shows. A file may be untrusted, and hold any names.
_KINDS = ("train/", "eval/", "time/", "memory/")
_MOST_REFRESHES = 5000


class Curve(NamedTuple):
  """Holds one quantity that was recorded during training.

  Attributes:
    steps: `[n]` int64, ascending.
    values: `[n]` float64, finite.
  """

  steps: np.ndarray
  values: np.ndarray


Curves = Mapping[str, Curve]


def curves(workdir: pathlib.Path) -> dict[str, Curve]:
  """Reads the curves in metrics.jsonl by name; skips malformed lines and values that are no finite number."""
  found: dict[str, dict[int, float]] = {}
  try:
    lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
  except OSError:
    lines = []
  for text in lines:
    try:
      line = json.loads(text)
    except (ValueError, RecursionError):  # a killed process may leave half a line
      continue
    if not isinstance(line, dict) or type(line.get("step")) is not int or not 0 <= line["step"] < 2**31:
      continue
    for name, value in numbers(line).items():
      if name.startswith(_KINDS):
        found.setdefault(name, {})[line["step"]] = value  # the last record of a step counts
  made = {}
  for name, points in found.items():
    steps = np.array(sorted(points), np.int64)
    made[name] = Curve(steps, np.array([points[step] for step in steps.tolist()]))
  return made


def numbers(found: object) -> dict[str, float]:
  """Returns the finite numbers of a JSON object, by name."""
  entries = found.items() if isinstance(found, dict) else ()
  return {
    name: float(value)
    for name, value in entries
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
  }


def steps_per_epoch(found: Curves) -> int:
  """Returns the steps per epoch. An epoch ends with a reading of the loss; 0 if there is none yet."""
  loss = found.get("train/loss")
  return int(loss.steps[0]) if loss else 0


def refreshed(refreshes: Mapping[str, Refresh], found: Curves) -> dict[str, np.ndarray]:
  """Returns the steps `[n]` int64 after which each refresh was made, for refreshes with a recorded time.

  The steps follow from the settings alone, so that a resumed run has the same steps.
  """
  per_epoch = steps_per_epoch(found)
  last = int(found["train/loss"].steps[-1]) if per_epoch else 0
  made: dict[str, list[int]] = {name: [] for name in refreshes if f"time/refresh_{name}" in found}
  step = 0
  for _ in range(_MOST_REFRESHES):
    if step >= last:
      break
    for name in refresh.due(refreshes, step, per_epoch):
      if name in made:
        made[name].append(step)
    step = refresh.next_due(refreshes, step, last, per_epoch)
  return {name: np.array(steps, np.int64) for name, steps in made.items() if steps}


def seconds(workdir: pathlib.Path) -> dict[str, float]:
  """Reads the time by stage from report/seconds.json, or from metrics.jsonl if the run has not ended."""
  try:
    kept = numbers(json.loads((workdir / "report" / "seconds.json").read_text(encoding="utf-8")))
  except (OSError, ValueError, RecursionError):
    kept = {}
  found = curves(workdir)
  return kept or {
    name.removeprefix("time/"): float(curve.values[-1])
    for name, curve in found.items()
    if name.startswith("time/")
  }


def memory(found: Curves) -> dict[str, float]:
  """Returns the peak memory in bytes, by 'host' and 'device'."""
  return {
    name.removeprefix("memory/").removesuffix("_bytes"): float(curve.values.max())
    for name, curve in found.items()
    if name.startswith("memory/")
  }
