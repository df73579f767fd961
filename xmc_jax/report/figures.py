"""Draws the figures of one run's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from xmc_jax.metrics.slices import FREQUENCIES
from xmc_jax.report import drawing
from xmc_jax.report.scores import Sample
from xmc_jax.report.training_records import Curve, Curves

VALIDATION = ("P@1", "P@5", "nDCG@5", "PSP@5", "R@10", "R@100")
_BINS = 60
TRAINING_POINTS = "training points of a label"
_FEW = 40  # longer curves get no marker at each reading
STEADY = 30  # bins with fewer pairs are drawn hollow, as their share is uncertain


def loss(curves: Curves, refreshed: Mapping[str, drawing.Steps]) -> drawing.Figure:
  """Draws the loss at the end of each epoch, and below it the steps of refreshes."""
  figure, axes, strip = drawing.axes("Training loss", "step", "loss", strips=len(refreshed))
  _line(axes, curves["train/loss"], 1.0, 0)
  _mark(axes, strip, refreshed)
  return figure


def validation(curves: Curves, refreshed: Mapping[str, drawing.Steps], step: int) -> drawing.Figure:
  """Draws validation metrics over the steps, and marks the step of the tested parameters."""
  figure, axes, strip = drawing.axes("Validation", "step", "percent", strips=len(refreshed))
  names = [name for name in VALIDATION if f"eval/{name}" in curves]
  for number, name in enumerate(names):
    _line(axes, curves[f"eval/{name}"], 100.0, number)
  handles = axes.get_lines()
  if step:
    handles.append(axes.axvline(step, color="#555e67", linewidth=1, linestyle=(0, (2, 2)), zorder=0))
  axes.set_ylim(bottom=0)
  drawing.legend(axes, [*names, *(["tested"] if step else [])], handles)
  _mark(axes, strip, refreshed)
  return figure


def _line(axes: drawing.Axes, curve: Curve, scale: float, number: int) -> None:
  style = drawing.style(number)
  if len(curve.steps) > _FEW:
    style["marker"] = ""
  axes.plot(curve.steps, scale * curve.values, **style)


def _mark(axes: drawing.Axes, strip: drawing.Axes | None, refreshed: Mapping[str, drawing.Steps]) -> None:
  axes.set_xlim(left=0)
  drawing.whole_numbers(strip or axes)
  if strip is not None:
    drawing.strip(strip, refreshed)


def frequencies(contributions: Mapping[str, np.ndarray]) -> drawing.Figure:
  """Draws what labels of each frequency contribute to two metrics (as Gupta et al. 2024, Fig. 7)."""
  names = [name for name in ("P@1", "P@5") if name in contributions]
  figure, axes, _ = drawing.axes("Contribution by label frequency", TRAINING_POINTS, "percentage points")
  parts = {name: 100 * contributions[name] for name in names}
  drawing.bars(axes, parts, FREQUENCIES)
  return figure


def found(shares: Mapping[str, np.ndarray]) -> drawing.Figure:
  """Draws the share of the true pairs that is found, by label frequency."""
  title = "True labels found, by label frequency"
  figure, axes, _ = drawing.axes(title, TRAINING_POINTS, "percent of true pairs")
  drawing.bars(axes, {name: 100 * values for name, values in shares.items()}, FREQUENCIES)
  axes.set_ylim(0, 100)
  return figure


def precision_recall(curves: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> drawing.Figure:
  """Draws precision against recall, one line per curve (Gupta et al. 2024, Fig. 5)."""
  figure, axes, _ = drawing.axes("Precision and recall", "recall, percent", "precision, percent")
  for number, (precision, recall) in enumerate(curves.values()):
    style = drawing.style(number)
    axes.plot(100 * recall, 100 * precision, **{**style, "marker": style["marker"] * (len(recall) < _FEW)})
  axes.set(xlim=(0, 100), ylim=(0, 100))
  drawing.legend(axes, list(curves))
  return figure


def reliability(bins: Sequence[Mapping[str, float]]) -> drawing.Figure:
  """Draws the share of right labels against predicted probability (Guo et al. 2017, Fig. 1), and bin sizes.

  Args:
    bins: as `metrics.reliability` returns them.
  """
  figure, axes, strip = drawing.axes(
    "Reliability", "predicted probability, percent", "right, percent", strips=5
  )
  below = cast("drawing.Axes", strip)  # it has rows
  x, y = (100 * np.array([found[name] for found in bins], float) for name in ("predicted", "right"))
  few = np.array([found["pairs"] < STEADY for found in bins], bool)
  (even,) = axes.plot([0, 100], [0, 100], color="#555e67", linewidth=1, linestyle=(0, (2, 2)), zorder=0)
  (line,) = axes.plot(x, y, **drawing.style(0))
  axes.plot(x[few], y[few], **{**drawing.style(0), "linestyle": "", "markerfacecolor": "white"})
  axes.set(xlim=(0, 100), ylim=(0, 100))
  edges = 100 * np.array([(found["low"], found["high"]) for found in bins], float).reshape(-1, 2)
  shares = 100 * np.array([found["share"] for found in bins], float)
  below.bar(edges[:, 0], shares, np.diff(edges)[:, 0] * 0.9, align="edge", color=drawing.COLOURS[0])
  below.set_yscale("log")
  below.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
  below.minorticks_off()
  below.set_ylabel("pairs, %", fontsize=8)
  drawing.legend(axes, ["in each bin", "predicted = right"], [line, even])
  return figure


def scores(sample: Sample, kind: str = "scores") -> drawing.Figure:
  """Draws histograms of the scores of true, wrong and random labels (Gupta et al. 2024, Fig. 6)."""
  figure, axes, _ = drawing.axes(f"{kind.capitalize()} of labels", kind, "percent of pairs in each bin")
  kinds = {"random": sample.random, "best wrong": sample.best_wrong, "true": sample.true}
  kinds = {name: values[np.isfinite(values)] for name, values in kinds.items()}
  kinds = {name: values.astype(np.float64) for name, values in kinds.items() if len(values)}
  ends = np.array([np.quantile(values, (0.001, 0.999)) for values in kinds.values()])
  low, high = (ends[:, 0].min(), ends[:, 1].max()) if len(ends) else (0.0, 1.0)
  slack = 0.5 * max(abs(low), 1.0) if high - low <= 1e-6 * max(abs(low), abs(high)) else 0.0
  edges = np.linspace(low - slack, high + slack, _BINS + 1)
  styles = {"random": (5, ":"), "best wrong": (1, "--"), "true": (0, "-")}
  handles = []
  for name, values in kinds.items():
    shares = 100 * np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / len(values)
    colour, line = drawing.COLOURS[styles[name][0]], styles[name][1]
    axes.stairs(shares, edges, fill=True, color=colour, alpha=0.12)
    handles.append(axes.stairs(shares, edges, color=colour, linestyle=line, linewidth=1.4))
  axes.set_ylim(bottom=0)
  drawing.legend(axes, list(kinds), handles)
  return figure
