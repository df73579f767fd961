"""Figures: any data can be drawn, no name hurts, and matplotlib's own state is left as it was."""

import io
import types

import numpy as np
import pytest
from cases import each_case

from xmc_jax import metrics
from xmc_jax.report import drawing, figures, side_figures
from xmc_jax.report.scores import Sample
from xmc_jax.report.training_records import Curve
from xmc_jax.storage import atomic

matplotlib = pytest.importorskip("matplotlib")

NAMES = ("", "_hidden", "$x^2$ \\frac", "<script>", "漢字", "שלום", "a" * 300, "\x1b\n\t", "plain")


PIXELS = ((920, 660), (919, 660))  # Matplotlib up to 3.11.0 cuts 4.6 x 200 = 919.999... off


def _curve(*values):
  return Curve(np.arange(1, len(values) + 1) * 3, np.array(values))


def _size(png):
  from PIL import Image

  return Image.open(io.BytesIO(png)).size


def _sample(true, wrong, random):
  return Sample(np.arange(3), *(np.array(part, np.float32) for part in (true, wrong, random)), 0.5, 0.5)


@each_case(
  "count, refreshed", [(1, {}), (2, {"clusters": [0]}), (300, {"a $x$ <b>": [0, 1], "漢字": range(900)})]
)
def test_curves(count, refreshed):
  curves = {"train/loss": _curve(*np.linspace(3, 1, count)), "eval/P@1": _curve(*np.linspace(0, 0.4, count))}
  for figure in (figures.loss(curves, refreshed), figures.validation(curves, refreshed, 3)):
    assert _size(drawing.png(figure)) in PIXELS


@each_case(
  "sample",
  [
    _sample([0.5], [], []),
    _sample([1.0, 1.0], [1.0], [1.0]),
    _sample([1e30, -1e30], [np.inf], [-np.inf, 0.0]),
    _sample([0.0], [0.0], [0.0]),
    _sample([], [], []),
    _sample(np.linspace(0, 1, 500), np.linspace(0, 2, 50), np.linspace(-1, 0, 5000)),
  ],
)
def test_histograms_of_any_scores(sample):
  assert drawing.png(figures.scores(sample))


def test_bars_and_precision_recall():
  assert drawing.png(figures.frequencies({"P@1": np.full(5, 0.2), "P@5": np.zeros(5), "R@1": np.ones(1)}))
  assert drawing.png(figures.frequencies({"P@1": np.zeros(1)}))
  assert drawing.png(figures.found({"first 5": np.array([1.0])}))
  assert drawing.png(
    figures.precision_recall({"a": (np.ones(1), np.ones(1)), "b": (np.ones(500), np.ones(500))})
  )


@each_case("probabilities", [[], [0.0], [1.0] * 50, np.linspace(0, 1, 1000) ** 4])
def test_reliability_of_any_probabilities(probabilities):
  found = metrics.reliability(probabilities, np.arange(len(probabilities)) % 2 == 0)
  bins = [one._asdict() for one in found.bins]
  assert _size(drawing.png(figures.reliability(bins))) in PIXELS


def test_reliability_shows_what_was_measured():
  """60 pairs at 0.9, 54 of them right; one at 0.1, wrong: a hollow mark."""
  found = metrics.reliability([0.9] * 60 + [0.1], [True] * 54 + [False] * 7, num_bins=5)
  upper, lower = figures.reliability([one._asdict() for one in found.bins]).get_axes()
  _, line, hollow = upper.get_lines()
  np.testing.assert_allclose(line.get_xydata(), [[10, 0], [90, 90]])
  np.testing.assert_allclose(hollow.get_xydata(), [[10, 0]])
  assert hollow.get_markerfacecolor() == "white"
  shares = {round(bar.get_x()): bar.get_height() for bar in lower.patches}
  assert shares == {0: pytest.approx(100 / 61), 80: pytest.approx(6000 / 61)}


def _finished(letter, name):
  curves = {"train/loss": _curve(2, 1), "eval/P@1": _curve(0.1, 0.2), "time/train": _curve(5, 9)}
  return types.SimpleNamespace(letter=letter, name=name, curves=curves)


def test_any_names_of_runs():
  runs = [_finished(chr(65 + place), name) for place, name in enumerate(NAMES)]
  runs[0].curves = {}
  parts = [np.linspace(0.3, 0, 5)] * len(runs)
  points = [(np.array([0.5, 0.4]), np.array([0.1, 0.2]))] * len(runs)
  for figure in (
    side_figures.validation(runs, "P@1"),
    side_figures.validation(runs, "P@1", by_time=True),
    side_figures.losses(runs),
    side_figures.frequencies(runs, "P@1", parts),
    side_figures.precision_recall(runs, points),
  ):
    assert drawing.png(figure)


@each_case("name", NAMES)
def test_names_are_short_and_in_any_font(name):
  shown = drawing.name_of(name)
  assert 1 <= len(shown) <= 24 and all(letter == "…" or " " <= letter <= "~" for letter in shown)


def test_matplotlib_is_left_as_it_was():
  import sys

  before, had_pyplot = dict(matplotlib.rcParams), "matplotlib.pyplot" in sys.modules
  drawing.png(figures.frequencies({"P@1": np.array([0.1, 0.2])}))
  assert dict(matplotlib.rcParams) == before
  assert ("matplotlib.pyplot" in sys.modules) == had_pyplot


def test_the_same_figure_is_the_same_file(tmp_path):
  pngs = {drawing.png(figures.frequencies({"P@1": np.array([0.1, 0.2])})) for _ in range(2)}
  assert len(pngs) == 1
  atomic.write_bytes(tmp_path / "a.png", pngs.pop())
  assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
