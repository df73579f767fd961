"""Chooses and describes example test points: right, wrong, plausible but not labelled, and missed labels."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from xmc_jax.data import Dataset
from xmc_jax.metrics.hits import Hits
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


def choose(
  ranking: Ranking,
  hits: Hits,
  truth: sp.csr_matrix,
  nearness: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Chosen:
  """Chooses the points to show; `nearness` returns how near labels `[n]` are to other labels `[n]`."""
  rng = np.random.default_rng(_SEED)
  (num_rows, depth), counts = ranking.ids.shape, np.diff(truth.indptr)
  best = np.full(num_rows, depth)  # the rank of the first true label
  np.minimum.at(best, hits.rows, hits.ranks)
  num_first = np.bincount(hits.rows, hits.ranks < counts[hits.rows], minlength=num_rows)
  whole = np.flatnonzero((counts > 0) & (num_first == counts))
  several = whole[counts[whole] > 1]
  wrong = np.flatnonzero((best > 0) & (counts > 0) & (ranking.ids[:, 0] >= 0))
  sure = np.flatnonzero((best > 0) & (best < depth))
  lead = ranking.scores[sure, 0] - ranking.scores[sure, best[sure]]
  compared = np.random.default_rng(_SEED).permutation(wrong)[:_CANDIDATES]
  candidates = {
    "right": rng.permutation(several if len(several) >= _EACH else whole),
    "plausible": _by_nearness(compared, ranking, truth, nearness),
    "sure": sure[np.argsort(-lead, kind="stable")],
    "missed": rng.permutation(np.flatnonzero((best >= depth) & (counts > 0))),
  }
  chosen: dict[str, np.ndarray] = {}
  taken: set[int] = set()
  for kind, rows in candidates.items():
    picked = _varied([row for row in dict.fromkeys(rows.tolist()) if row not in taken], ranking.ids)
    taken.update(picked)
    chosen[kind] = np.array(picked, np.int64)
  return Chosen(num_compared=len(compared), **chosen)


def _by_nearness(
  rows: np.ndarray,
  ranking: Ranking,
  truth: sp.csr_matrix,
  nearness: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
  """Orders points by how near their first label is to a true one; a point may occur several times."""
  pairs = [(row, label) for row in rows for label in truth[row].indices[:_MOST_TRUE]]
  if not pairs:
    return rows
  of, true = np.array(pairs, np.int64).T
  return of[np.argsort(-nearness(ranking.ids[of, 0].astype(np.int64), true), kind="stable")]


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
  """Returns the first labels of the test point in a row, then those of its true labels that they miss.

  `frequency` is the `[L]` numbers of training points; `reasons`, by row and label, may lack some.
  """
  ids, true = ranking.ids[row].tolist(), dataset.test.unfiltered_positives[row].indices
  names, why = dataset.label_names, reasons.get(row, {})

  def line(kind: str, label: int, place: str) -> Line:
    return Line(kind, names[label], place, int(frequency[label]), why.get(label, ""))

  lines = [
    line("right" if label in true else "wrong", label, f"{ranking.scores[row, rank]:#.3g}")
    for rank, label in enumerate(ids[:SHOWN])
    if label >= 0
  ]
  missed = _missed(ids, true)
  for label in missed[:_MISSED]:
    place = f"rank {ids.index(label) + 1}" if label in ids else f"not in the first {len(ids)}"
    lines.append(line("missed", label, place))
  return Labels(lines, more=max(len(missed) - _MISSED, 0))


def _missed(ids: list[int], true: np.ndarray) -> list[int]:
  """Returns the true labels that are not among the first `SHOWN`; ranked ones come first."""
  places = {label: rank for rank, label in enumerate(ids) if label >= 0}
  missing = set(true.tolist()) - set(ids[:SHOWN])
  return sorted(missing, key=lambda label: (places.get(label, len(ids)), label))
