"""Scores (point, label) pairs, and measures how well scores separate true labels from others.

If labels are ranked by vectors, pairs outside the ranking are scored as well. Other rankings (the hybrid's
probabilities, a source's votes) have their own scale and score only the labels that they rank, so a sample
of them holds only ranked labels.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from xmc_jax import config as configs
from xmc_jax.metrics.hits import Hits
from xmc_jax.ops.unit_rows import unit_rows
from xmc_jax.retrieval.fusion import Tree
from xmc_jax.retrieval.search import Ranking, with_bias_column
from xmc_jax.runs import label_frequency
from xmc_jax.runs.trained import Trained
from xmc_jax.storage import run_folder

_SEED = 0  # of all samples, the same on every process
_ROWS, _LABELS, _RANDOM = 2000, 2000, 128  # points, labels and random labels of a sample, at most
_CURVE_ROWS, _CURVE_POINTS = 20_000, 400
_STEADY = 20  # thresholds that fewer pairs reach are left out, as their precision is too uncertain


def score_labels(trained: Trained, scores: str, queries: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """Scores points with some labels as the run's ranking by vectors does.

  Args:
    trained: the run.
    scores: 'fused' or one of the method's scorers; ignored for a method without scorers.
    queries: `[n, D]` embeddings of the points.
    labels: `[m]` label ids; only these are embedded.

  Returns:
    `[n, m]` float32.
  """
  run = trained.run

  def by(scorer: str) -> np.ndarray:
    vectors = trained.some_labels(scorer, labels)
    if not is_fused:
      vectors = label_frequency.add_label_column(run, vectors, scorer, labels)
    return with_bias_column(queries, vectors.shape[1]) @ vectors.T

  scorers, fitted = run.method.scorers, run.ranking_folder / run_folder.FUSION
  is_fused = scorers and scores == "fused" and fitted.exists()
  if not is_fused:
    return by(scores if scores in scorers else "")
  by_classifier, by_encoder = by("classifier"), by("encoder")
  rarity = np.broadcast_to(run.data.inverse_propensity.astype(np.float32)[labels], by_encoder.shape)
  features = np.stack([by_classifier, by_encoder, rarity], axis=-1)
  return by_classifier + by_encoder + Tree.load(fitted).predict(features)


def label_cosines(trained: Trained, dim: int, one: np.ndarray, other: np.ndarray) -> np.ndarray:
  """Returns `[n]` cosines of the encoder's vectors of labels `[n]` and other labels `[n]`.

  `dim` is the length of a point's vector; a label's may end in a bias, which is left out.
  """
  scorer = "encoder" if "encoder" in trained.run.method.scorers else ""
  labels, places = np.unique(np.stack([one, other]), return_inverse=True)
  vectors = unit_rows(trained.some_labels(scorer, labels)[:, :dim])
  return np.einsum("nd,nd->n", *vectors[places.reshape(2, -1)])


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


def are_of_vectors(chosen: str) -> bool:
  """Returns whether scores of this name come from vectors: 'fused' or a scorer, not 'hybrid' or a source."""
  return chosen != "hybrid" and chosen not in configs.SOURCES


def sample(
  ranking: Ranking,
  hits: Hits,
  truth: sp.csr_matrix,
  filtered: sp.csr_matrix,
  score: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
) -> Sample:
  """Samples pairs, few enough that their labels are embedded in seconds.

  Without `score`, true pairs are looked up in the ranking; one outside it counts as the lowest.

  Args:
    ranking: the ranking of N points, with a true label at least.
    hits: its true pairs.
    truth, filtered: CSR `[N, L]` true labels, and pairs that are not counted.
    score: scores points (row numbers `[n]`) with labels `[m]` as the ranking does, `[n, m]`; None if only the
      ranking has such scores.
  """
  rng = np.random.default_rng(_SEED)
  rows = _sampled_rows(truth, rng)
  random_labels = rng.choice(truth.shape[1], min(_RANDOM, truth.shape[1]), replace=False)
  labels = truth[rows].indices
  of = np.repeat(np.arange(len(rows)), np.diff(truth[rows].indptr))
  random, above_random = np.zeros(0, np.float32), None
  if score:
    every, places = np.unique(np.concatenate([labels, random_labels]), return_inverse=True)
    scores = score(rows, every)
    true, scores = scores[of, places[: len(labels)]], scores[:, places[len(labels) :]]
    is_wrong = ~(truth + filtered)[rows][:, random_labels].toarray().astype(bool)
    random, above_random = scores[is_wrong], _share_above(true, scores[of], is_wrong[of])
  else:
    is_there = ranking.ids[rows[of]] == labels[:, None]
    true = np.where(is_there.any(axis=1), ranking.scores[rows[of], is_there.argmax(axis=1)], -np.inf)
  is_wrong = ~_is_hit(ranking, hits)[rows] & (ranking.ids[rows] >= 0)
  has_wrong, best = is_wrong.any(axis=1), ranking.scores[rows, is_wrong.argmax(axis=1)]
  beats = np.isfinite(true) & ((true > best[of]) | ~has_wrong[of])
  return Sample(rows, true[np.isfinite(true)], best[has_wrong], random, above_random, float(beats.mean()))


def _sampled_rows(truth: sp.csr_matrix, rng: np.random.Generator) -> np.ndarray:
  """Returns points with labels: at least one, however many labels it has."""
  counts = np.diff(truth.indptr)
  order = rng.permutation(np.flatnonzero(counts))[:_ROWS]
  return np.sort(order[: max(1, np.searchsorted(np.cumsum(counts[order]), _LABELS, side="right"))])


def _share_above(true: np.ndarray, scores: np.ndarray, counts: np.ndarray) -> float:
  """Returns the share of pairs in which a true score `[t]` is above another `[t, m]`, where `counts`."""
  won = (true[:, None] > scores) + 0.5 * (true[:, None] == scores)
  return float(won[counts].mean()) if counts.any() else 0.0


def _is_hit(ranking: Ranking, hits: Hits) -> np.ndarray:
  """Returns `[N, k]` whether each ranked label is true."""
  is_hit = np.zeros(ranking.ids.shape, bool)
  is_hit[hits.rows, hits.ranks] = True
  return is_hit


def cuts(
  ranking: Ranking, hits: Hits, num_true: int, *, are_probabilities: bool
) -> dict[str, tuple[float, float, float, float]]:
  """Measures what is kept by a number of labels for each point and, of probabilities, by thresholds.

  Args:
    ranking: the ranking of N points.
    hits: its true pairs.
    num_true: number of true pairs, ranked or not; at least 1.
    are_probabilities: adds thresholds of 50 % and of the whole percent with the best F1.

  Returns:
    For each rule, over all points together: labels kept per point, precision, recall and F1.
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
  return {
    rule: (pairs / len(real), right / max(pairs, 1), right / num_true, 2 * right / (pairs + num_true))
    for rule, (pairs, right) in rules.items()
  }


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
  sampled = np.random.default_rng(_SEED).permutation(num_rows)[:_CURVE_ROWS]
  real = ranking.ids[sampled] >= 0
  is_true, scores = _is_hit(ranking, hits)[sampled][real], ranking.scores[sampled][real]
  if not is_true.any():
    return np.zeros(0), np.zeros(0)
  order = np.argsort(-scores)
  right, ordered = np.cumsum(is_true[order]), scores[order]
  ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))  # equal scores share one threshold
  ends = ends[ends + 1 >= min(_STEADY, len(ordered))]
  precision, recall = right[ends] / (ends + 1), right[ends] / (num_true * len(sampled) / num_rows)
  even = np.searchsorted(recall, np.linspace(recall[0], recall[-1], _CURVE_POINTS))
  kept = np.unique(np.minimum(even, len(ends) - 1))
  return precision[kept], np.minimum(recall[kept], 1.0)
