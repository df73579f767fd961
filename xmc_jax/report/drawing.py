"""Draws with Matplotlib in one style: half a page wide, and readable without colour."""

from __future__ import annotations

import io
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure

GREY = "#555e67"
_HEIGHT = 3.3  # of a figure, in inches
_LONGEST = 24  # characters of a name


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
  """Returns a figure, its axes, and a strip with `strips` rows below them; without rows that is the axes."""
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
