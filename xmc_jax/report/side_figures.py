"""Draws the figures of a comparison, with a line or a bar for each run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xmc_jax.metrics.slices import FREQUENCIES
from xmc_jax.report import drawing, training_records
from xmc_jax.report.figures import TRAINING_POINTS
from xmc_jax.report.finished_runs import Finished
from xmc_jax.report.training_records import Curve

_FEW = 40  # longer curves get no marker at each reading


def validation(runs: Sequence[Finished], metric: str, *, by_time: bool = False) -> drawing.Figure:
  """Draws a validation metric over epochs, or over minutes of training steps."""
  x = "minutes of training" if by_time else "epoch"
  figure, axes, _ = drawing.axes(f"Validation {metric}", x, "percent")
  curves = [run.curves.get(f"eval/{metric}") for run in runs]
  _lines(axes, runs, curves, 100.0, by_time)
  axes.set_ylim(bottom=0)
  return figure


def losses(runs: Sequence[Finished]) -> drawing.Figure:
  """Draws the training loss over epochs."""
  figure, axes, _ = drawing.axes("Training loss", "epoch", "loss")
  _lines(axes, runs, [run.curves.get("train/loss") for run in runs], 1.0, False)
  return figure


def _lines(
  axes: drawing.Axes, runs: Sequence[Finished], curves: Sequence[Curve | None], scale: float, by_time: bool
) -> None:
  drawn = []
  for number, (run, curve) in enumerate(zip(runs, curves)):
    places = _places(run, curve, by_time) if curve else None
    if curve is None or places is None:
      continue
    style = drawing.style(number)
    style["marker"] = style["marker"] if len(places) <= _FEW else ""
    axes.plot(places, scale * curve.values, **style)
    drawn.append(run)
  axes.set_xlim(left=0)
  drawing.legend(axes, list(map(name, drawn)))


def _places(run: Finished, curve: training_records.Curve, by_time: bool) -> np.ndarray | None:
  """Returns `[n]` epochs, or minutes, of a curve's readings; None if the run did not record them."""
  per_epoch = training_records.steps_per_epoch(run.curves)
  if not by_time:
    return curve.steps / per_epoch if per_epoch else None
  spent = run.curves.get("time/train")
  return np.interp(curve.steps, spent.steps, spent.values) / 60 if spent else None


def precision_recall(
  runs: Sequence[Finished], found: Sequence[tuple[np.ndarray, np.ndarray]]
) -> drawing.Figure:
  """Draws precision against recall."""
  figure, axes, _ = drawing.axes("Precision and recall", "recall, percent", "precision, percent")
  for number, (precision, recall) in enumerate(found):
    axes.plot(100 * recall, 100 * precision, **{**drawing.style(number), "marker": ""})
  axes.set(xlim=(0, 100), ylim=(0, 100))
  drawing.legend(axes, list(map(name, runs)))
  return figure


def frequencies(runs: Sequence[Finished], metric: str, parts: Sequence[np.ndarray]) -> drawing.Figure:
  """Draws what labels of each frequency contribute to a metric."""
  figure, axes, _ = drawing.axes(f"{metric} by label frequency", TRAINING_POINTS, "percentage points")
  drawing.bars(axes, {name(run): 100 * values for run, values in zip(runs, parts)}, FREQUENCIES)
  return figure


def name(run: Finished) -> str:
  """Returns a run's letter and name, in characters that any font has."""
  return f"{run.letter} {drawing.name_of(run.name)}"
