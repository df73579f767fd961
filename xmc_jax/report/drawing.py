"""Draws with Matplotlib in one style: half a page wide, and readable without colour."""

from __future__ import annotations

import io
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure

GREY = "#555e67"
_HEIGHT = 3.3  # of a figure, in inches
_LONGEST = 24  # characters of a name
_HATCHES = ("", "////", "....", "xxxx", "----", "||||", "++++")


def png(draw: Callable[..., Figure], *args: Any, **kwargs: Any) -> bytes:
  """Returns the figure that `draw(*args, **kwargs)` makes as PNG bytes; equal figures give equal bytes."""
  from matplotlib import style

  out = io.BytesIO()
  with style.context(pathlib.Path(__file__).with_name("figures.mplstyle")):
    draw(*args, **kwargs).savefig(out, format="png", metadata={"Software": None})
  return out.getvalue()


def name_of(text: str) -> str:
  """Returns an untrusted name for a figure: only characters that every font has, shortened, never empty."""
  shown = "".join(letter if " " <= letter <= "~" else "?" for letter in " ".join(text[:200].split()))
  return (shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…") or "?"


def axes(title: str, x: str, y: str, *, strips: int = 0) -> tuple[Figure, Axes, Axes]:
  """Builds a figure with one pair of axes, and below them a strip with `strips` rows.

  Returns:
    `(figure, axes, strip)`; without rows the strip is the axes.
  """
  from matplotlib.figure import Figure

  figure = Figure()
  if strips:
    height = 0.16 * strips
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(_HEIGHT - height, height))
    lower.grid(False)
    upper.tick_params(labelbottom=False)
  else:
    upper = lower = figure.subplots()
  upper.set_title(title)
  upper.set_ylabel(y)
  lower.set_xlabel(x)
  return figure, upper, lower


def legend(axes: Axes, names: Sequence[str], handles: Sequence) -> None:
  """Adds a legend below the figure."""
  axes.figure.legend(
    handles,
    [" " + name for name in names],  # matplotlib leaves out names that begin with an underscore
    loc="outside lower center",
    ncols=min(2 if max(map(len, names), default=0) > 14 else 4, max(len(names), 1)),
  )


def marks(axes: Axes, rows: Mapping[str, Sequence[int] | np.ndarray]) -> None:
  """Draws marks at steps, one row for each name."""
  for row, steps in enumerate(rows.values()):
    axes.scatter(steps, np.full(len(steps), row), marker="|", s=34, color="C3", linewidth=1.2, clip_on=False)
  axes.set_ylim(len(rows) - 0.4, -0.6)
  axes.set_yticks(range(len(rows)), list(rows))
  axes.tick_params(axis="y", labelsize=7, length=0)


def bars(axes: Axes, groups: Mapping[str, np.ndarray], names: Sequence[str]) -> None:
  """Draws bars side by side at named places; each group has its colour and hatching."""
  width = 0.8 / max(len(groups), 1)
  handles = []
  for number, values in enumerate(groups.values()):
    places = np.arange(1, len(values) + 1) + (number - (len(groups) - 1) / 2) * width
    hatch, colour = _HATCHES[number % len(_HATCHES)], f"C{number}"
    group = axes.bar(
      places,
      values,
      width * 0.9,
      facecolor="white" if hatch else colour,
      edgecolor=colour,
      hatch=hatch,
      linewidth=0.6,
    )
    handles.append(group)
  longest = max(map(len, groups.values()), default=0)
  axes.set_xticks(range(1, longest + 1), names[:longest])
  axes.grid(False, axis="x")
  legend(axes, list(groups), handles)
