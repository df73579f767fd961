"""Draws the figures of pages; percentages are given as fractions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from xmc_jax.metrics.slices import FREQUENCIES
from xmc_jax.report import drawing
from xmc_jax.report.scores import Sample

_BINS = 60
_HATCHES = ("", "////", "....", "xxxx", "----", "||||", "++++")
_FEW = 40  # longer curves get no marker at each reading
STEADY = 30  # bins with fewer pairs are drawn hollow, as their share is uncertain
_DOTTED: dict[str, Any] = {"color": drawing.GREY, "linewidth": 1, "linestyle": (0, (2, 2)), "zorder": 0}

Lines = Mapping[str, tuple[np.ndarray, np.ndarray]]  # name -> places and values


def curves(
  title: str, x: str, y: str, lines: Lines, *, refreshed: Mapping = MappingProxyType({}), tested: int = 0
) -> drawing.Figure:
  """Draws curves, and marks the steps of refreshes and of the tested parameters.

  Args:
    title, x, y: the title and the axes' names; a `y` of 'percent' is of fractions, and begins at 0.
    lines: the curves.
    refreshed: the steps of each refresh, which are marked below the curves.
    tested: the step of the tested parameters; 0 marks none.
  """
  figure, axes, strip = drawing.axes(title, x, y, strips=len(refreshed))
  for places, values in lines.values():
    _plot(axes, places, 100 * values if y == "percent" else values)
  names, handles = list(lines), list(axes.get_lines())
  if tested:
    names.append("tested")
    handles.append(axes.axvline(tested, **_DOTTED))
  axes.set_xlim(left=0)
  if y == "percent":
    axes.set_ylim(bottom=0)
  if x == "step":
    strip.locator_params(axis="x", nbins=6, integer=True)
    strip.xaxis.set_major_formatter("{x:,.0f}")
  if names != [y]:
    drawing.legend(axes, names, handles)
  if refreshed:
    for row, steps in enumerate(refreshed.values()):
      at = np.full(len(steps), row)
      strip.scatter(steps, at, marker="|", s=34, color="C3", linewidth=1.2, clip_on=False)
    strip.set_ylim(len(refreshed) - 0.4, -0.6)
    strip.set_yticks(range(len(refreshed)), list(refreshed))
    strip.tick_params(axis="y", labelsize=7, length=0)
  return figure


def _plot(axes: drawing.Axes, x: np.ndarray, y: np.ndarray) -> None:
  style: dict[str, Any] = {} if len(x) <= _FEW else {"marker": ""}
  axes.plot(x, y, **style)


def by_frequency(title: str, y: str, parts: Mapping[str, np.ndarray]) -> drawing.Figure:
  """Draws numbers of each group of labels, such as parts of a metric (Gupta et al. 2024, Fig. 7)."""
  figure, axes, _ = drawing.axes(title, "training points of a label", y)
  width = 0.8 / len(parts)
  handles = []
  for number, values in enumerate(parts.values()):
    places = np.arange(1, len(values) + 1) + (number - (len(parts) - 1) / 2) * width
    hatch, colour = _HATCHES[number % len(_HATCHES)], f"C{number}"
    face = "white" if hatch else colour
    look: dict[str, Any] = {"facecolor": face, "edgecolor": colour, "hatch": hatch, "linewidth": 0.6}
    handles.append(axes.bar(places, 100 * values, width * 0.9, **look))
  longest = max(map(len, parts.values()))
  axes.set_xticks(range(1, longest + 1), FREQUENCIES[:longest])
  axes.grid(False, axis="x")
  drawing.legend(axes, list(parts), handles)
  if y.startswith("percent "):  # of a whole
    axes.set_ylim(0, 100)
  return figure


def precision_recall(lines: Lines) -> drawing.Figure:
  """Draws (precision, recall) of each line (Gupta et al. 2024, Fig. 5)."""
  figure, axes, _ = drawing.axes("Precision and recall", "recall, percent", "precision, percent")
  for precision, recall in lines.values():
    _plot(axes, 100 * recall, 100 * precision)
  axes.set(xlim=(0, 100), ylim=(0, 100))
  drawing.legend(axes, list(lines), axes.get_lines())
  return figure


def reliability(bins: Sequence[Mapping[str, float]]) -> drawing.Figure:
  """Draws the share of right labels against predicted probability (Guo et al. 2017, Fig. 1), and bin sizes.

  Args:
    bins: as `metrics.reliability` returns them.
  """
  figure, axes, below = drawing.axes(
    "Reliability", "predicted probability, percent", "right, percent", strips=5
  )
  low, high, share, predicted, right = (
    100 * np.array([found[name] for found in bins]) for name in ("low", "high", "share", "predicted", "right")
  )
  few = np.array([found["pairs"] < STEADY for found in bins], bool)
  (line,) = axes.plot(predicted, right)
  (even,) = axes.plot([0, 100], [0, 100], marker="", **_DOTTED)
  axes.plot(
    predicted[few], right[few], linestyle="", marker="o", color=line.get_color(), markerfacecolor="white"
  )
  axes.set(xlim=(0, 100), ylim=(0, 100))
  below.bar(low, share, (high - low) * 0.9, align="edge", color="C0")
  below.set_yscale("log")
  below.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
  below.minorticks_off()
  below.set_ylabel("pairs, %", fontsize=8)
  drawing.legend(axes, ["in each bin", "predicted = right"], [line, even])
  return figure


def scores(sample: Sample, kind: str) -> drawing.Figure:
  """Draws histograms of the scores of true, wrong and random labels (Gupta et al. 2024, Fig. 6)."""
  figure, axes, _ = drawing.axes(f"{kind.capitalize()} of labels", kind, "percent of pairs in each bin")
  kinds = {
    "random": (sample.random, 5, ":"),
    "best wrong": (sample.best_wrong, 1, "--"),
    "true": (sample.true, 0, "-"),
  }
  kinds = {name: look for name, look in kinds.items() if len(look[0])}
  ends = np.array([np.quantile(values, (0.001, 0.999)) for values, _, _ in kinds.values()], np.float64)
  low, high = (ends[:, 0].min(), ends[:, 1].max()) if len(ends) else (0.0, 1.0)
  slack = 0.5 * max(abs(low), 1.0) if high - low <= 1e-6 * max(abs(low), abs(high)) else 0.0
  edges = np.linspace(low - slack, high + slack, _BINS + 1)
  handles = []
  for values, number, line in kinds.values():
    shares = 100 * np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / len(values)
    colour = f"C{number}"
    axes.stairs(shares, edges, fill=True, color=colour, alpha=0.12)
    handles.append(axes.stairs(shares, edges, color=colour, linestyle=line, linewidth=1.4))
  axes.set_ylim(bottom=0)
  drawing.legend(axes, list(kinds), handles)
  return figure
