"""Measures each label over the test points, for a file and the page, and counts which are confused."""

import csv
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from xmc_jax import metrics, sanitize
from xmc_jax.data import Dataset
from xmc_jax.metrics.hits import Hits
from xmc_jax.metrics.ranking import ratio
from xmc_jax.report import pages
from xmc_jax.storage import atomic
from xmc_jax.types import Array

_SHOWN = 200  # labels in the page's table
_SHARES = ("R@1", "R@5", "mean_reciprocal_rank", "P", "R", "F1")  # in the columns; the others are counts
_HEADS = {"training_points": "training", "test_points": "test", "mean_reciprocal_rank": "MRR"}  # on the page
_OF_CONFUSIONS = ("missed_key", "missed_label", "given_key", "given_label", "test_points", "share_broader")


def columns(
  truth: Any, hits: Hits, frequency: np.ndarray, given: np.ndarray | None = None
) -> dict[str, Array]:
  """Returns numbers of each label, `[L]` by name; a share of nothing is NaN.

  R@k is the share of a label's test points that have it among the first k. With sets `given`, also how often
  these give the label rightly (TP), wrongly (FP) and not (FN), and their precision, recall and F1.

  Args:
    truth: sparse `[N, L]` labels of the test points.
    hits: where they are ranked.
    frequency: `[L]` training points.
    given: `[N, k]` label ids, padded with -1.
  """
  true = np.bincount(truth.indices, minlength=truth.shape[1])
  found: dict[str, Array] = {"training_points": frequency, "test_points": true}
  for name, weights in (
    ("R@1", hits.ranks < 1),
    ("R@5", hits.ranks < 5),
    ("mean_reciprocal_rank", 1 / (hits.ranks + 1)),
  ):
    found[name] = _share(np.bincount(hits.labels, weights, minlength=len(true)), true)
  if given is not None:
    sets = metrics.score_sets(given, truth)
    right, wrong = sets.num_right, sets.num_given - sets.num_right
    found |= {"TP": right, "FP": wrong, "FN": true - right, "P": _share(right, right + wrong)}
    found |= {"R": _share(right, true), "F1": _share(2 * right, right + wrong + true)}
  return found


def _share(part: Array, whole: Array) -> np.ndarray:
  return np.where(whole == 0, np.nan, ratio(part, whole))


def write(
  folder: pathlib.Path,
  suffix: str,
  dataset: Dataset,
  numbers: Mapping[str, Array],
  given: np.ndarray | None = None,
) -> None:
  """Writes labels.csv, and with sets `given` confusions.csv; `suffix` is appended to their names."""
  names = (map(sanitize.line, of) for of in (dataset.label_keys, dataset.label_names))
  cells = ((_shares if name in _SHARES else iter)(of) for name, of in numbers.items())
  _write_csv(folder / f"labels{suffix}.csv", ("key", "label", *numbers), zip(*names, *cells))
  if given is not None:
    _write_csv(folder / f"confusions{suffix}.csv", _OF_CONFUSIONS, confusions(dataset, given))


def _write_csv(path: pathlib.Path, head: Iterable[str], rows: Iterable[Iterable]) -> None:
  with atomic.written_whole(path) as beside, beside.open("w", encoding="utf-8", newline="") as file:
    csv.writer(file).writerows([head])
    csv.writer(file).writerows(rows)


def _shares(values: Array) -> Iterator[float | str]:
  return ("" if math.isnan(share) else round(float(share), 4) for share in values)


def sortable(dataset: Dataset, numbers: Mapping[str, Array]) -> dict[str, Any]:
  """Returns the page's table: `head`, and for each row its `cells` and its place by each column.

  It has the labels with the most mistakes: given wrongly and not given or, without sets, not among the first
  five.
  """
  true = numbers["test_points"]
  missed = true * (1 - np.nan_to_num(numbers["R@5"]))
  mistakes = numbers["FP"] + numbers["FN"] if "FP" in numbers else missed
  occurs = (true > 0) | (mistakes > 0)
  rows = np.argsort(np.where(occurs, -mistakes, 1), kind="stable")[: min(_SHOWN, np.count_nonzero(occurs))]
  cells = [
    [("–" if np.isnan(of) else pages.percent(of, 0)) if name in _SHARES else f"{of:,}" for of in values[rows]]
    for name, values in numbers.items()
  ]
  places = [np.argsort(np.argsort(-values[rows], kind="stable")) for values in numbers.values()]
  names = [dataset.label_names[row] for row in rows]
  return {
    "head": ["label", *(_HEADS.get(name, name) for name in numbers)],
    "rows": [
      {"cells": (name, *row), "places": of_row} for name, row, of_row in zip(names, zip(*cells), zip(*places))
    ],
    "all": len(true),
  }


def confusions(dataset: Dataset, given: np.ndarray) -> Iterator[list]:
  """Yields a row for each pair of `metrics.confusions`; says whether the two share a broader concept."""
  of_labels = dataset.label_keys, dataset.label_names
  for *pair, count in metrics.confusions(given, dataset.test.unfiltered_positives).tolist():
    one, other = (set(dataset.concept(label).get("broader", ())) for label in pair)
    share = int(not one.isdisjoint(other)) if dataset.label_concepts else ""
    yield [*(sanitize.line(of[label]) for label in pair for of in of_labels), count, share]
