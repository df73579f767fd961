"""Chooses and shows example test points: right, wrong, plausible but not labelled, and missed labels."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from xmc_jax.data import Split
from xmc_jax.metrics.hits import Hits
from xmc_jax.report.html import Markup, element, isolated, joined, note
from xmc_jax.report.scores import LabelVectors
from xmc_jax.retrieval.search import Ranking
from xmc_jax.runs.evaluate import Why

SHOWN = 5  # labels of each point

_EACH, _MOST_CHECKED = 6, 500
_CANDIDATES, _MOST_TRUE = 150, 4  # points that are searched for near labels, and true labels of each
_NAME = 120
_MISSED = 6


class Choice(NamedTuple):
  """Holds example points of one kind.

  Attributes:
    title, how: what they are, and how they were chosen.
    rows: `[n]` the points.
  """

  title: str
  how: str
  rows: np.ndarray


class Outcome(NamedTuple):
  """Describes how well each point is ranked.

  Attributes:
    best: `[N]` the rank of the first true label, from 0; the ranking's depth if none is found.
    counts: `[N]` number of true labels.
    all_first: `[N]` bool, True if all true labels are ranked before any other.
    lead: `[N]` score of the first label minus that of the best true one, or of the last if none is found.
  """

  best: np.ndarray
  counts: np.ndarray
  all_first: np.ndarray
  lead: np.ndarray


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
  first = np.bincount(hits.rows, hits.ranks < counts[hits.rows], minlength=num_rows)
  last = np.maximum(np.sum(ranking.ids >= 0, axis=1) - 1, 0)
  rows = np.arange(num_rows)
  is_ranked = ranking.ids[:, 0] >= 0 if depth else np.zeros(num_rows, bool)
  lead = np.zeros(num_rows)
  compared = ranking.scores[rows, np.minimum(best, last)] if depth else np.zeros(num_rows)
  lead[is_ranked] = (ranking.scores[:, :1].ravel()[is_ranked] - compared[is_ranked]).astype(np.float64)
  return Outcome(best, counts, (counts > 0) & (first == counts), lead)


def near_pairs(
  ranking: Ranking, found: Outcome, truth: sp.csr_matrix, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Pairs wrong first labels with true labels, for points whose first label is wrong.

  Returns:
    (row, first label, true label), `[n]` each, for a few random points and a few true labels of each.
  """
  wrong = np.flatnonzero((found.best > 0) & (found.counts > 0) & (ranking.ids[:, :1] >= 0).all(axis=1))
  rows = np.random.default_rng(seed).permutation(wrong)[:_CANDIDATES]
  pairs = [(row, label) for row in rows for label in truth[row].indices[:_MOST_TRUE]]
  if not pairs or not ranking.ids.shape[1]:
    return (np.zeros(0, np.int64),) * 3
  of, true = np.array(pairs, np.int64).T
  return of, ranking.ids[of, 0].astype(np.int64), true


def choose(
  ranking: Ranking,
  found: Outcome,
  near: tuple[np.ndarray, np.ndarray, np.ndarray],
  vectors: LabelVectors | None,
  seed: int,
) -> Iterator[Choice]:
  """Yields the points to show, kind by kind; no point is shown twice.

  Args:
    ranking: the ranking of the points.
    found: the outcome of each point.
    near: as `near_pairs` returns it.
    vectors: vectors of the labels in `near`; None if there are none.
    seed: seed of the random choices.
  """
  rng, depth = np.random.default_rng(seed), ranking.ids.shape[1]
  rows, first, true = near
  by_nearness = rows
  if vectors is not None and len(rows):
    by_nearness = rows[np.argsort(-vectors.nearness(first, true), kind="stable")]
  sure = np.flatnonzero((found.best > 0) & (found.best < depth) & (found.counts > 0))
  sure = sure[np.argsort(-found.lead[sure], kind="stable")[:_MOST_CHECKED]]
  several = np.flatnonzero(found.all_first & (found.counts > 1))
  whole = several if len(several) >= _EACH else np.flatnonzero(found.all_first)
  missed = np.flatnonzero((found.best >= depth) & (found.counts > 0))
  kinds = (
    (
      "Right",
      "All true labels are ranked first; drawn at random from such points, with several labels if there are "
      "enough.",
      rng.permutation(whole),
    ),
    (
      "Plausible, and not labelled",
      "The first label is wrong, scores above every true label of its point, and is nearest to one of these "
      f"(cosine of the two labels' vectors) among {len(np.unique(rows))} such points drawn at random. Many "
      "such labels may be missing from the data rather than wrong.",
      _once(by_nearness),
    ),
    (
      "Wrong, and sure of it",
      "The first label is wrong and outscores the best true one by most, among points with a true label in "
      f"the first {depth}.",
      sure,
    ),
    (
      "Missed",
      f"No true label is in the first {depth}; drawn at random from such points.",
      rng.permutation(missed),
    ),
  )
  taken: set[int] = set()
  for title, how, candidates in kinds:
    kept = _varied([row for row in candidates.tolist() if row not in taken], ranking.ids)
    taken.update(kept)
    yield Choice(title, how, np.array(kept, np.int64))


def _varied(rows: list[int], ids: np.ndarray) -> list[int]:
  """Returns the first few rows, with different first labels if there are enough."""
  firsts, varied = set(), []
  for row in rows[:_MOST_CHECKED]:
    first = int(ids[row, 0])
    if first not in firsts:
      varied.append(row)
      firsts.add(first)
  others = [row for row in rows[:_MOST_CHECKED] if row not in set(varied)]
  return [*varied, *others][:_EACH]


def _once(rows: np.ndarray) -> np.ndarray:
  """Returns the rows without repeats, in the order of their first occurrence."""
  return rows[np.sort(np.unique(rows, return_index=True)[1])]


def reasons(
  choices: Sequence[Choice], ranking: Ranking, truth: sp.csr_matrix, why: Why
) -> dict[int, dict[int, str]]:
  """Explains why the shown labels of the chosen points were ranked.

  Returns:
    For each point, a line of text by label: for its first labels, and for the true labels they miss.
  """
  rows = np.concatenate([np.zeros(0, np.int64), *(choice.rows for choice in choices)])
  if not len(rows):
    return {}
  ids = np.full((len(rows), SHOWN + _MISSED), -1, np.int32)
  for place, row in enumerate(rows.tolist()):
    first = ranking.ids[row, :SHOWN]
    shown = [*first.tolist(), *_missed(ranking.ids[row].tolist(), truth[row].indices)[:_MISSED]]
    ids[place, : len(shown)] = shown
  return dict(zip(rows.tolist(), why(rows, ids)))


def section(
  choices: Sequence[Choice],
  split: Split,
  names: Sequence[str],
  ranking: Ranking,
  frequency: np.ndarray,
  reasons: Mapping[int, Mapping[int, str]] = MappingProxyType({}),
) -> Markup:
  """Returns the chosen points as cards; `reasons` are as the function of this name returns them."""
  parts = []
  for choice in choices:
    if len(choice.rows):
      cards = [
        card(
          split.texts[row],
          labels(ranking, row, split.unfiltered_positives[row].indices, names, frequency, why),
        )
        for row, why in ((row, reasons.get(row, {})) for row in choice.rows.tolist())
      ]
      parts += [element("h3", choice.title), note(choice.how), element("div", *cards, css="cards")]
  return joined(parts)


def card(text: str, *parts: Markup) -> Markup:
  return element("div", element("p", isolated(text or "(empty text)")), *parts, css="card")


def labels(
  ranking: Ranking,
  row: int,
  true: np.ndarray,
  names: Sequence[str],
  frequency: np.ndarray,
  reasons: Mapping[int, str] = MappingProxyType({}),
) -> Markup:
  """Lists the first labels of a point, marked, then its missed true labels, with reasons below each."""
  is_true, ids = set(true.tolist()), ranking.ids[row].tolist()
  places = {label: rank for rank, label in enumerate(ids) if label >= 0}

  def line(mark: str, label: int, more: str, css: str) -> Markup:
    number = f"{frequency[label]:,} training point{'' if frequency[label] == 1 else 's'}"
    return element(
      "li",
      element("b", mark),
      isolated(names[label], _NAME),
      Markup(" "),
      element("small", more + number),
      *([element("span", isolated(reasons[label]), css="why")] if label in reasons else []),
      css=css,
    )

  lines = [
    line("✓" if label in is_true else "✗", label, f"{ranking.scores[row, rank]:#.3g} · ",
         "right" if label in is_true else "wrong")
    for rank, label in enumerate(ids[:SHOWN])
    if label >= 0
  ]  # fmt: skip
  missed = _missed(ids, true)
  for label in missed[:_MISSED]:
    rank = f"rank {places[label] + 1} · " if label in places else f"not in the first {len(ids)} · "
    lines.append(line("○", label, rank, "missed"))
  if len(missed) > _MISSED:
    lines.append(
      element("li", element("b", "○"), f"and {len(missed) - _MISSED} more true labels", css="missed")
    )
  return element("ul", *lines)


def _missed(ids: list[int], true: np.ndarray) -> list[int]:
  """Returns the true labels that are not among the first `SHOWN`; ranked ones come first."""
  places = {label: rank for rank, label in enumerate(ids) if label >= 0}
  missing = set(true.tolist()) - set(ids[:SHOWN])
  return sorted(missing, key=lambda label: (places.get(label, len(ids)), label))
