"""Chooses and describes example test points: right, wrong, plausible but not labelled, and missed labels."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from xmc_jax.data import Dataset
from xmc_jax.metrics.hits import Hits
from xmc_jax.report.scores import LabelVectors
from xmc_jax.retrieval.search import Ranking
from xmc_jax.runs.evaluate import Why

SHOWN = 5  # labels of each point

_SEED = 0
_EACH, _MOST_CHECKED = 6, 500
_CANDIDATES, _MOST_TRUE = 150, 4  # points that are searched for near labels, and true labels of each
_MISSED = 6


class Chosen(NamedTuple):
  """Holds the points to show: `[n]` rows of each kind, as the page describes it.

  Attributes:
    right, plausible, sure, missed: the points; none is in two kinds.
    num_compared: number of points among which the plausible ones were searched.
  """

  right: np.ndarray
  plausible: np.ndarray
  sure: np.ndarray
  missed: np.ndarray
  num_compared: int


class Line(NamedTuple):
  """Describes a label of a point.

  Attributes:
    kind: 'right', 'wrong' or 'missed'.
    text: the label's text.
    place: its score, or its rank if it is missed.
    frequency: its number of training points.
    reason: why it was ranked; '' if the ranking gives no reasons.
  """

  kind: str
  text: str
  place: str
  frequency: int
  reason: str


class Labels(NamedTuple):
  """Holds the labels of a point that are shown, and the number of `more` true ones that are not."""

  lines: list[Line]
  more: int


class Outcome(NamedTuple):
  """Describes how well each point is ranked.

  Attributes:
    best: `[N]` the rank of the first true label, from 0; the ranking's depth if none is found.
    counts: `[N]` number of true labels.
    all_first: `[N]` bool, True if all true labels are ranked before any other.
  """

  best: np.ndarray
  counts: np.ndarray
  all_first: np.ndarray


def outcome(ranking: Ranking, hits: Hits, counts: np.ndarray) -> Outcome:
  """Computes the outcome of a ranking.

  Args:
    ranking: the ranking of N points.
    hits: its true pairs.
    counts: `[N]` number of true labels.
  """
  num_rows, depth = ranking.ids.shape
  best = np.full(num_rows, depth)
  np.minimum.at(best, hits.rows, hits.ranks)
  num_first = np.bincount(hits.rows, hits.ranks < counts[hits.rows], minlength=num_rows)
  return Outcome(best, counts, (counts > 0) & (num_first == counts))


def near_pairs(
  ranking: Ranking, outcome: Outcome, truth: sp.csr_matrix
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Pairs wrong first labels with true labels, for points whose first label is wrong.

  Returns:
    (row, first label, true label), `[n]` each, for a few random points and a few true labels of each.
  """
  wrong = np.flatnonzero((outcome.best > 0) & (outcome.counts > 0) & (ranking.ids[:, 0] >= 0))
  rows = np.random.default_rng(_SEED).permutation(wrong)[:_CANDIDATES]
  pairs = [(row, label) for row in rows for label in truth[row].indices[:_MOST_TRUE]]
  of, true = np.array(pairs, np.int64).reshape(-1, 2).T
  return of, ranking.ids[of, 0].astype(np.int64), true


def choose(
  ranking: Ranking,
  outcome: Outcome,
  near: tuple[np.ndarray, np.ndarray, np.ndarray],
  vectors: LabelVectors | None,
) -> Chosen:
  """Chooses the points to show.

  Args:
    ranking: the ranking of the points.
    outcome: the outcome of each point.
    near: as `near_pairs` returns it.
    vectors: vectors of the labels in `near`; None if there are none.
  """
  rng, depth = np.random.default_rng(_SEED), ranking.ids.shape[1]
  rows, first, true = near
  by_nearness = rows
  if vectors is not None and len(rows):
    by_nearness = rows[np.argsort(-vectors.nearness(first, true), kind="stable")]
  sure = np.flatnonzero((outcome.best > 0) & (outcome.best < depth))
  lead = ranking.scores[sure, 0] - ranking.scores[sure, outcome.best[sure]]
  several = np.flatnonzero(outcome.all_first & (outcome.counts > 1))
  candidates = {
    "right": rng.permutation(several if len(several) >= _EACH else np.flatnonzero(outcome.all_first)),
    "plausible": by_nearness,
    "sure": sure[np.argsort(-lead, kind="stable")],
    "missed": rng.permutation(np.flatnonzero((outcome.best >= depth) & (outcome.counts > 0))),
  }
  chosen: dict[str, np.ndarray] = {}
  taken: set[int] = set()
  for kind, of_kind in candidates.items():
    picked = _varied([row for row in dict.fromkeys(of_kind.tolist()) if row not in taken], ranking.ids)
    taken.update(picked)
    chosen[kind] = np.array(picked, np.int64)
  return Chosen(num_compared=len(np.unique(rows)), **chosen)


def _varied(rows: list[int], ids: np.ndarray) -> list[int]:
  """Returns the first few rows, with different first labels if there are enough."""
  checked = rows[:_MOST_CHECKED]
  by_first = {int(ids[row, 0]): row for row in reversed(checked)}
  return sorted(checked, key=lambda row: row not in by_first.values())[:_EACH]


def reasons(rows: np.ndarray, ranking: Ranking, truth: sp.csr_matrix, why: Why) -> dict[int, dict[int, str]]:
  """Explains why the labels that are shown of some points were ranked.

  Returns:
    For each point, a line of text by label: for its first labels, and for the true labels they miss.
  """
  if not len(rows):
    return {}
  ids = np.full((len(rows), SHOWN + _MISSED), -1, np.int32)
  for place, row in enumerate(rows.tolist()):
    first = ranking.ids[row, :SHOWN]
    shown = [*first.tolist(), *_missed(ranking.ids[row].tolist(), truth[row].indices)[:_MISSED]]
    ids[place, : len(shown)] = shown
  return dict(zip(rows.tolist(), why(rows, ids)))


def labels(
  dataset: Dataset,
  frequency: np.ndarray,
  reasons: Mapping[int, Mapping[int, str]],
  ranking: Ranking,
  row: int,
) -> Labels:
  """Returns the first labels of a test point, then those of its true labels that they miss.

  Args:
    dataset: the labels and the test points.
    frequency: `[L]` number of training points of each label.
    reasons: for each point, a line of text by label; may lack points and labels.
    ranking: the ranking of the test points.
    row: the point.
  """
  ids, true = ranking.ids[row].tolist(), dataset.test.unfiltered_positives[row].indices
  names, why = dataset.labels.texts, reasons.get(row, {})
  lines = [
    ("right" if label in true else "wrong", label, f"{ranking.scores[row, rank]:#.3g}")
    for rank, label in enumerate(ids[:SHOWN])
    if label >= 0
  ]
  missed = _missed(ids, true)
  for label in missed[:_MISSED]:
    place = f"rank {ids.index(label) + 1}" if label in ids else f"not in the first {len(ids)}"
    lines.append(("missed", label, place))
  return Labels(
    [
      Line(kind, names[label], place, int(frequency[label]), why.get(label, ""))
      for kind, label, place in lines
    ],
    more=max(len(missed) - _MISSED, 0),
  )


def _missed(ids: list[int], true: np.ndarray) -> list[int]:
  """Returns the true labels that are not among the first `SHOWN`; ranked ones come first."""
  places = {label: rank for rank, label in enumerate(ids) if label >= 0}
  missing = set(true.tolist()) - set(ids[:SHOWN])
  return sorted(missing, key=lambda label: (places.get(label, len(ids)), label))
