"""Draws figures half a page wide, readable without colour, with Matplotlib if it is installed."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000", "#E69F00")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_HATCHES = ("", "////", "....", "xxxx", "----", "||||", "++++")
_GREY, _PALE = "#555e67", "#dfe3e7"
_SIZE, _DPI = (4.6, 3.3), 200  # inches; shown at about 100 pixels to the inch
_FONT = 9.0
_LONGEST = 24

Steps: TypeAlias = Sequence[int] | np.ndarray

MISSING = "No figures: matplotlib is not installed (pip install matplotlib, then --mode=evaluate)."


def available() -> bool:
  return importlib.util.find_spec("matplotlib") is not None


def name_of(text: str, longest: int = _LONGEST) -> str:
  """Returns an untrusted name for a figure: only characters that every font has, shortened, never empty."""
  shown = "".join(letter if " " <= letter <= "~" else "?" for letter in " ".join(text[:200].split()))
  return (shown if len(shown) <= longest else shown[: longest - 1] + "…") or "?"


def axes(title: str, x: str, y: str, *, strips: int = 0) -> tuple[Figure, Axes, Axes | None]:
  """Builds a figure with one pair of axes, and below them a strip with `strips` rows.

  Returns:
    `(figure, axes, strip)`; the strip shares the x axis, and is None if it has no rows.
  """
  from matplotlib.figure import Figure

  figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained", facecolor="white")
  if not strips:
    upper, lower = figure.subplots(), None
  else:
    height = 0.16 * strips
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(_SIZE[1] - height, height))
    _plain(lower)
    lower.grid(False)
    upper.tick_params(labelbottom=False)
  _plain(upper)
  upper.set_title(title, fontsize=_FONT + 0.5, loc="left", color="#1c2126", parse_math=False)
  upper.set_ylabel(y, fontsize=_FONT, parse_math=False)
  (lower or upper).set_xlabel(x, fontsize=_FONT, parse_math=False)
  return figure, upper, lower


def _plain(found: Axes) -> None:
  """Styles axes plainly: two spines, and a pale grid behind the data."""
  for side in ("top", "right"):
    found.spines[side].set_visible(False)
  for side in ("left", "bottom"):
    found.spines[side].set_color(_GREY)
  found.tick_params(labelsize=_FONT - 1, colors=_GREY, labelcolor="#1c2126")
  found.grid(True, color=_PALE, linewidth=0.6)
  found.set_axisbelow(True)


def legend(found: Axes, names: Sequence[str], handles: Sequence | None = None) -> None:
  """Adds a legend below the figure; draws names literally, not as formulas."""
  handles = found.get_lines() if handles is None else handles
  columns = 2 if max(map(len, names), default=0) > 14 else 4
  made = found.figure.legend(
    handles,
    [" " + name for name in names],  # matplotlib leaves out names that begin with an underscore
    loc="outside lower center",
    ncols=min(columns, max(len(names), 1)),
    fontsize=_FONT - 1,
    frameon=False,
  )
  for text in made.get_texts():
    text.set_parse_math(False)


def strip(found: Axes, rows: Mapping[str, Steps]) -> None:
  """Draws marks at steps, one row for each name."""
  names = list(rows)
  for row, name in enumerate(names):
    steps = list(rows[name])
    found.scatter(steps, [row] * len(steps), marker="|", s=34, color=COLOURS[3], linewidth=1.2, clip_on=False)
  found.set_ylim(len(names) - 0.4, -0.6)
  found.set_yticks(range(len(names)), [name_of(name, 16) for name in names], parse_math=False)
  found.tick_params(axis="y", labelsize=_FONT - 2, length=0)


def style(number: int) -> dict:
  """Returns the style of a line, by its number: lines differ in colour, dashes and markers."""
  return {
    "color": COLOURS[number % len(COLOURS)],
    "linestyle": LINES[number % len(LINES)],
    "marker": MARKERS[number % len(MARKERS)],
    "markersize": 3.5,
    "linewidth": 1.5,
  }


def whole_numbers(found: Axes) -> None:
  """Sets integer ticks on the x axis, few enough for half a page."""
  from matplotlib.ticker import FuncFormatter, MaxNLocator

  found.xaxis.set_major_locator(MaxNLocator(6, integer=True))
  found.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def bars(found: Axes, groups: dict[str, np.ndarray], names: Sequence[str]) -> None:
  """Draws bars side by side at named places; each group has its colour and hatching."""
  width = 0.8 / max(len(groups), 1)
  handles = []
  for number, values in enumerate(groups.values()):
    places = np.arange(1, len(values) + 1) + (number - (len(groups) - 1) / 2) * width
    hatch, colour = _HATCHES[number % len(_HATCHES)], COLOURS[number % len(COLOURS)]
    look: dict[str, Any] = {"color": colour}
    if hatch:
      look = {"facecolor": "white", "edgecolor": colour, "hatch": hatch}
    handles.append(found.bar(places, values, width * 0.9, linewidth=0.6, **look))
  longest = max(map(len, groups.values()), default=0)
  found.set_xticks(range(1, longest + 1), names[:longest])
  found.grid(False, axis="x")
  legend(found, list(groups), handles)


def png(figure: Figure) -> bytes:
  """Returns a figure as PNG bytes, at twice the shown resolution; equal figures give equal bytes."""
  out = io.BytesIO()
  figure.savefig(out, format="png", metadata={"Software": None})
  return out.getvalue()
