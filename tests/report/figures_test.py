"""Figures: any data can be drawn, no name hurts, and matplotlib's own state is left as it was."""

import io
import sys

import numpy as np
import pytest
from PIL import Image

from xmc_jax import metrics
from xmc_jax.report import drawing, figures
from xmc_jax.report.scores import Sample
from xmc_jax.report.training_records import Curve

matplotlib = pytest.importorskip("matplotlib")

NAMES = ("", "_hidden", "$x^2$ \\frac", "<script>", "漢字", "שלום", "a" * 300, "\x1b\n\t", "plain")

PIXELS = ((920, 660), (919, 660))  # Matplotlib up to 3.11.0 cuts 4.6 x 200 = 919.999... off


def _curve(*values):
  return Curve(np.arange(1, len(values) + 1) * 3, np.array(values))


def _is_whole(png):
  return Image.open(io.BytesIO(png)).size in PIXELS


def _sample(true, wrong, random):
  return Sample(np.arange(3), *(np.array(part, np.float32) for part in (true, wrong, random)), 0.5, 0.5)


@pytest.mark.parametrize(
  "count, refreshed", [(1, {}), (2, {"clusters": [0]}), (300, {"clusters": [0, 1], "shortlist": range(900)})]
)
def test_curves(count, refreshed):
  loss = {"loss": _curve(*np.linspace(3, 1, count))}
  metrics = {"P@1": _curve(*np.linspace(0, 0.4, count)), "P@5": _curve(*np.linspace(0, 0.2, count))}
  for y, lines, tested in (("loss", loss, 0), ("percent", metrics, 3)):
    assert _is_whole(drawing.png(figures.curves, "$x$", "step", y, lines, refreshed=refreshed, tested=tested))


@pytest.mark.parametrize(
  "sample",
  [
    _sample([0.5], [], []),
    _sample([1.0, 1.0], [1.0], [1.0]),
    _sample([0.0], [0.0], [0.0]),
    _sample([], [], []),
    _sample(np.linspace(0, 1, 500), np.linspace(0, 2, 50), np.linspace(-1, 0, 5000)),
  ],
)
def test_histograms_of_any_scores(sample):
  assert drawing.png(figures.scores, sample, "scores")


@pytest.mark.parametrize("probabilities", [[], [0.0], [1.0] * 50, np.linspace(0, 1, 1000) ** 4])
def test_reliability_of_any_probabilities(probabilities):
  found = metrics.reliability(probabilities, np.arange(len(probabilities)) % 2 == 0)
  bins = [one._asdict() for one in found.bins]
  assert _is_whole(drawing.png(figures.reliability, bins))


def test_reliability_shows_what_was_measured():
  """60 pairs at 0.9, 54 of them right; one at 0.1, wrong: a hollow mark."""
  found = metrics.reliability([0.9] * 60 + [0.1], [True] * 54 + [False] * 7, num_bins=5)
  upper, lower = figures.reliability([one._asdict() for one in found.bins]).get_axes()
  line, _, hollow = upper.get_lines()
  np.testing.assert_allclose(line.get_xydata(), [[10, 0], [90, 90]])
  np.testing.assert_allclose(hollow.get_xydata(), [[10, 0]])
  assert hollow.get_markerfacecolor() == "white"
  shares = {round(bar.get_x()): bar.get_height() for bar in lower.patches}
  assert shares == {0: pytest.approx(100 / 61), 80: pytest.approx(6000 / 61)}


def test_any_names_of_runs():
  names = [f"{chr(65 + place)} {drawing.name_of(name)}" for place, name in enumerate(NAMES)]
  parts, curve = np.linspace(0.3, 0, 5), (np.array([0.5, 0.4]), np.array([0.1, 0.2]))
  assert drawing.png(figures.by_frequency, "title", "percent of pairs", dict.fromkeys(names, parts))
  others = {"one point": (np.ones(1), np.ones(1)), "many": (np.ones(500), np.ones(500))}
  assert drawing.png(figures.precision_recall, dict.fromkeys(names, curve) | others)
  assert drawing.png(figures.curves, "title", "epoch", "percent", dict.fromkeys(names, curve))
  for shown in map(drawing.name_of, NAMES):
    assert 1 <= len(shown) <= 24 and all(letter == "…" or " " <= letter <= "~" for letter in shown)


def test_the_same_figure_is_the_same_file_and_matplotlib_is_left_as_it_was():
  before, had_pyplot = dict(matplotlib.rcParams), "matplotlib.pyplot" in sys.modules
  one, other = (
    drawing.png(figures.by_frequency, "title", "percent", {"P@1": np.array([0.1, 0.2])}) for _ in range(2)
  )
  assert one == other
  assert dict(matplotlib.rcParams) == before
  assert ("matplotlib.pyplot" in sys.modules) == had_pyplot
