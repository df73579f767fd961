"""Scores (point, label) pairs, and measures how well scores separate true labels from others.

If labels are ranked by vectors, pairs outside the ranking are scored as well. Other rankings (the hybrid's
probabilities, a source's votes) have their own scale and score only the labels that they rank, so a sample
of them holds only ranked labels.
"""

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from xmc_jax import config as configs
from xmc_jax.metrics.hits import Hits
from xmc_jax.ops.unit_rows import unit_rows
from xmc_jax.retrieval.fusion import Tree
from xmc_jax.retrieval.search import Ranking, with_bias_column
from xmc_jax.runs import label_frequency
from xmc_jax.runs.run import Run
from xmc_jax.storage import run_folder
from xmc_jax.types import PyTree

_SEED = 0  # of all samples, the same on every process
_ROWS, _LABELS, _RANDOM = 2000, 2000, 128  # points, labels and random labels of a sample, at most
_CURVE_ROWS, _CURVE_POINTS = 20_000, 400
_STEADY = 20  # thresholds that fewer pairs reach are left out, as their precision is too uncertain


class LabelVectors:
  """Embeds some labels with a trained run, and scores pairs with them as the run's ranking does.

  Args:
    run: the run.
    params, extra_state: as trained.
    scores: 'fused' or one of the method's views; ignored for a method without views.
    ids: `[n]` label ids; each is embedded once.
  """

  def __init__(self, run: Run, params: PyTree, extra_state: PyTree, scores: str, ids: np.ndarray):
    self._ids = np.unique(ids).astype(np.int64)
    fitted = run.ranking_folder / run_folder.FUSION
    views = run.method.scorers
    self._tree = Tree.load(fitted) if views and scores == "fused" and fitted.exists() else None
    self._propensity = run.data.inverse_propensity.astype(np.float32)
    names = ("classifier", "encoder") if self._tree else (scores if scores in views else "",)
    self._vectors = [run.embedder.labels(params, extra_state, name, self._ids) for name in names]
    if not self._tree:
      self._vectors = [label_frequency.add_label_column(run, self._vectors[0], names[0], self._ids)]

  def of_all(self, queries: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns `[n, m]` float32 scores of points `[n, D]` with labels `[m]`."""
    queries = with_bias_column(queries, self._vectors[0].shape[1])
    scores = [queries @ each.T for each in self._of(labels)]
    if self._tree is None:
      return scores[0]
    rarity = np.broadcast_to(self._propensity[labels], scores[0].shape)
    return scores[0] + scores[1] + self._tree.predict(np.stack([*scores, rarity], axis=-1))

  def nearness(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns `[n]` cosines of two labels' vectors; those of their texts if there are several kinds."""
    return np.einsum("nd,nd->n", unit_rows(self._of(one)[-1]), unit_rows(self._of(other)[-1]))

  def _of(self, labels: np.ndarray) -> list[np.ndarray]:
    places = np.searchsorted(self._ids, labels)
    return [vectors[places] for vectors in self._vectors]


class Sample(NamedTuple):
  """Holds scores of pairs for a sample of points.

  Attributes:
    rows: `[n]` the points.
    true: `[t]` scores of their true labels.
    best_wrong: `[n']` scores of the first label in each ranking that is not true.
    random: at most `[n * m]` scores of random labels, without true and filtered ones; empty if random
      labels have no scores.
    above_random: share of a point's (true, random) pairs in which the true label scores higher; a tie counts
      one half. None if random labels have no scores.
    above_wrong: share of true labels that score higher than all wrong labels of their point.
  """

  rows: np.ndarray
  true: np.ndarray
  best_wrong: np.ndarray
  random: np.ndarray
  above_random: float | None
  above_wrong: float


class Plan(NamedTuple):
  """Defines the pairs of a sample.

  Attributes:
    rows: `[n]` points, all of them with true labels.
    of, labels: `[t]` position in `rows`, and label, of each true pair.
    random_labels: `[m]` random labels.
  """

  rows: np.ndarray
  of: np.ndarray
  labels: np.ndarray
  random_labels: np.ndarray


def plan(truth: sp.csr_matrix) -> Plan:
  """Samples points and labels, few enough that their labels are embedded in seconds.

  Args:
    truth: CSR `[N, L]` true labels.
  """
  rng = np.random.default_rng(_SEED)
  counts = np.diff(truth.indptr)
  order = rng.permutation(np.flatnonzero(counts))[:_ROWS]
  # At least one point, however many labels it has.
  rows = np.sort(order[: max(1, np.searchsorted(np.cumsum(counts[order]), _LABELS, side="right"))])
  chosen = truth[rows]
  random_labels = np.sort(rng.choice(truth.shape[1], min(_RANDOM, truth.shape[1]), replace=False))
  return Plan(
    rows,
    np.repeat(np.arange(len(rows)), np.diff(chosen.indptr)),
    chosen.indices.astype(np.int64),
    random_labels,
  )


def are_of_vectors(chosen: str) -> bool:
  """Returns whether scores of this name come from vectors: 'fused' or a view, not 'hybrid' or a source."""
  return chosen != "hybrid" and chosen not in configs.SOURCES


def sample(
  planned: Plan,
  ranking: Ranking,
  hits: Hits,
  known: sp.csr_matrix,
  vectors: LabelVectors | None = None,
  queries: np.ndarray | None = None,
) -> Sample:
  """Scores a plan's pairs by vectors, or else looks its true pairs up in the ranking.

  A true pair outside the ranking has no score without vectors, and counts as the lowest.

  Args:
    planned: the plan; its labels are among those of `vectors`.
    ranking: the ranking of N points, by the same vectors if they are given.
    hits: its true pairs.
    known: CSR `[N, L]` true and filtered pairs.
    vectors: the vectors of labels; None for a ranking by other scores.
    queries: `[N, D]` embeddings of points, if `vectors` are given.
  """
  rows, of = planned.rows, planned.of
  if vectors is None or queries is None:
    is_there = ranking.ids[rows[of]] == planned.labels[:, None]
    true = np.where(is_there.any(axis=1), ranking.scores[rows[of], is_there.argmax(axis=1)], -np.inf)
    random, above_random = np.zeros(0, np.float32), None
  else:
    labels, places = np.unique(planned.labels, return_inverse=True)
    scores = vectors.of_all(queries[rows], np.concatenate([labels, planned.random_labels]))
    true, scores = scores[of, places], scores[:, len(labels) :]
    is_wrong = ~np.asarray(known[rows][:, planned.random_labels].toarray(), bool)
    random, above_random = scores[is_wrong], _share_above(true, scores[of], is_wrong[of])
  is_wrong = ~_is_hit(ranking, hits)[rows] & (ranking.ids[rows] >= 0)
  has_wrong, best = is_wrong.any(axis=1), ranking.scores[rows, is_wrong.argmax(axis=1)]
  beats = np.isfinite(true) & ((true > best[of]) | ~has_wrong[of])
  return Sample(rows, true[np.isfinite(true)], best[has_wrong], random, above_random, float(beats.mean()))


def _share_above(true: np.ndarray, scores: np.ndarray, counts: np.ndarray) -> float:
  """Returns the share of pairs in which a true score `[t]` is above another `[t, m]`, where `counts`."""
  won = (true[:, None] > scores) + 0.5 * (true[:, None] == scores)
  return float(won[counts].mean()) if counts.any() else 0.0


def _is_hit(ranking: Ranking, hits: Hits) -> np.ndarray:
  """Returns `[N, k]` whether each ranked label is true."""
  is_hit = np.zeros(ranking.ids.shape, bool)
  is_hit[hits.rows, hits.ranks] = True
  return is_hit


class Cut(NamedTuple):
  """Holds what a rule keeps of a ranking, over all points together.

  Attributes:
    rule: the rule in words.
    per_point: number of labels that it keeps per point.
    precision: share of them that is right.
    recall: share of the true pairs that is kept.
    f1: the harmonic mean of the two.
  """

  rule: str
  per_point: float
  precision: float
  recall: float
  f1: float


def cuts(ranking: Ranking, hits: Hits, num_true: int, *, are_probabilities: bool) -> list[Cut]:
  """Measures what is kept by a number of labels for each point and, of probabilities, by thresholds.

  Args:
    ranking: the ranking of N points.
    hits: its true pairs.
    num_true: number of true pairs, ranked or not; at least 1.
    are_probabilities: adds thresholds of 50 % and of the whole percent with the best F1.
  """
  real = ranking.ids >= 0
  depths = [k for k in (1, 3, 5) if k <= ranking.ids.shape[1]]
  rules = {"the first" + f" {k}" * (k > 1): (real[:, :k].sum(), np.sum(hits.ranks < k)) for k in depths}
  if are_probabilities:
    edges = np.linspace(0, 1, 101)
    pairs, right = (
      np.cumsum(np.histogram(values, edges)[0][::-1])[::-1]
      for values in (ranking.scores[real], ranking.scores[hits.rows, hits.ranks])
    )
    best = int(np.argmax(right / (pairs + num_true)))
    rules["at least 50 %"] = pairs[50], right[50]
    rules[f"at least {best} %, the best F1"] = pairs[best], right[best]
  return [
    Cut(rule, pairs / len(real), right / max(pairs, 1), right / num_true, 2 * right / (pairs + num_true))
    for rule, (pairs, right) in rules.items()
  ]


def precision_recall(ranking: Ranking, hits: Hits, num_true: int) -> tuple[np.ndarray, np.ndarray]:
  """Computes precision and recall of all pairs that score at least a threshold, over thresholds.

  Thresholds that fewer than 20 pairs reach are left out. Pairs beyond the ranking's depth count as below
  every threshold. With more than 20,000 points, a sample is used and recall is scaled to it.

  Args:
    ranking: the ranking of N points.
    hits: its true pairs.
    num_true: number of true pairs, ranked or not.

  Returns:
    (precision `[n]`, recall `[n]`), from the highest threshold down; empty if no pair is true.
  """
  num_rows = len(ranking.ids)
  drawn = np.random.default_rng(_SEED).permutation(num_rows)[:_CURVE_ROWS]
  real = ranking.ids[drawn] >= 0
  is_true, scores = _is_hit(ranking, hits)[drawn][real], ranking.scores[drawn][real]
  if not is_true.any():
    return np.zeros(0), np.zeros(0)
  order = np.argsort(-scores)
  right, ordered = np.cumsum(is_true[order]), scores[order]
  ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))  # equal scores share one threshold
  ends = ends[ends + 1 >= min(_STEADY, len(ordered))]
  precision, recall = right[ends] / (ends + 1), right[ends] / (num_true * len(drawn) / num_rows)
  even = np.searchsorted(recall, np.linspace(recall[0], recall[-1], _CURVE_POINTS))
  kept = np.unique(np.minimum(even, len(ends) - 1))
  return precision[kept], np.minimum(recall[kept], 1.0)
