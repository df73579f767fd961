"""Writes the section of a run's page on its scores: how well they separate true labels from wrong ones."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from xmc_jax.metrics.hits import Hits
from xmc_jax.report import figures, scores, tables
from xmc_jax.report.html import Markup, element, joined, note
from xmc_jax.retrieval.search import Ranking

_SEED = 0
_DEEPEST = 100  # the largest number of labels that precision and recall are drawn for

Draw = Callable[..., list[Markup]]  # (name, () -> figure, caption), ... -> figures of a page


def section(
  ranking: Ranking,
  hits: Hits,
  sample: scores.Sample | None,
  truth: sp.csr_matrix,
  calibration: Mapping[str, Any] | None,
  draw: Draw,
) -> list[Markup]:
  """Shows how well scores separate right labels from wrong ones, and whether probabilities are calibrated.

  Args:
    ranking: the ranking of N test points.
    hits: its true pairs.
    sample: scores of pairs; None if no test point has a label.
    truth: CSR `[N, L]` true labels.
    calibration: as in report/metrics.json; None if scores are no probabilities.
    draw: puts figures on the page.
  """
  head = element("h2", "What scores tell")
  if sample is None:
    return [head, note("No test point has a label.")]
  depth = ranking.ids.shape[1]
  curves = _precision_recall(ranking, hits, truth.nnz)
  kind = "Probabilities" if calibration else "Scores"
  shown = "of true labels, of each point's best wrong label, and of labels drawn at random."
  if not len(sample.random):
    shown = f"of true labels among the first {depth}, and of each point's best wrong label."
  return [
    head,
    *_summary_notes(sample, len(ranking.ids), depth, is_probability=bool(calibration)),
    *draw(
      ("precision_recall", lambda: figures.precision_recall(curves),
       f"All points together, within the first {depth} labels of each: labels above one threshold for all "
       "points, or the same number of labels for each."),
      ("scores", lambda: figures.scores(sample, kind.lower()), f"{kind} {shown}"),
    ),
    element("h3", "How many labels to keep"),
    tables.cuts(scores.cuts(ranking, hits, truth.nnz, are_probabilities=bool(calibration))),
    note(f"Over all points together{'; the best F1 is that of these test points' * bool(calibration)}."),
    *(_reliability(calibration, len(ranking.ids), draw) if calibration else []),
  ]  # fmt: skip


def _summary_notes(sample: scores.Sample, num_rows: int, depth: int, *, is_probability: bool) -> list[Markup]:
  drawn = ", drawn at random" if len(sample.rows) < num_rows else ""
  points = f"Of {len(sample.rows):,} test points{drawn}: a true label scores"
  wrong = f"above every wrong one in {tables.percent(sample.above_wrong)} %."
  if sample.above_random is not None:
    share = tables.percent(sample.above_random)
    return [note(f"{points} above a random other one in {share} % of pairs, and {wrong}")]
  kind = (
    "probabilities that a label is right" if is_probability else "the larger, the higher a label is ranked"
  )
  return [
    note(
      f"Scores are the ranking's own: {kind}. Scores by the method's vectors are on another scale, and none "
      f"of them is shown here. A label beyond its point's first {depth} has no score, and counts as below the"
      " rest."
    ),
    note(f"{points} {wrong}"),
  ]


def _precision_recall(
  ranking: Ranking, hits: Hits, num_true: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Returns precision and recall by a threshold of scores, if that gives a curve, and by number of labels."""
  depth = ranking.ids.shape[1]
  by_score = scores.precision_recall(ranking, hits, num_true, _SEED)
  right = np.cumsum(np.bincount(hits.ranks, minlength=depth))[:_DEEPEST]
  shown = np.maximum(np.cumsum(np.sum(ranking.ids >= 0, axis=0)), 1)[:_DEEPEST]
  by_number = {"first k labels": (right / shown, right / num_true)}
  return {"score threshold": by_score, **by_number} if len(by_score[0]) else by_number


def _reliability(calibration: Mapping[str, Any], num_rows: int, draw: Draw) -> list[Markup]:
  bins: Sequence[Mapping[str, float]] = calibration["bins"]
  pairs = sum(found["pairs"] for found in bins)
  error, of_first = (f"{100 * calibration[name]:.2f}" for name in ("ece", "ece_first"))
  text = (
    f"Expected calibration error {error} percentage points over all {pairs:,} ranked pairs, {of_first} over "
    "the first label of each point (Guo et al., 2017). Most pairs have a small probability, and weigh most in"
    " the first number; the bins show the others, too."
  )
  summary = Markup("<summary>The bins, and what a threshold keeps</summary>")
  how = (
    "A threshold keeps the labels of its row and of the rows above; the last columns count them per point, "
    "and give the share of them that is right."
  )
  caption = (
    "Which share of labels is right, by predicted probability, in bins of equal width; on the dotted line "
    f"both are equal. Hollow: fewer than {figures.STEADY} pairs. Below: each bin's share of pairs, in "
    "logarithmic steps."
  )
  return [
    element("h3", "Whether the probabilities hold"),
    note(text),
    *([note(f"Note: {calibration['note']}.")] if calibration.get("note") else []),
    *draw(("reliability", lambda: figures.reliability(bins), caption)),
    element("details", joined([summary, note(how), tables.reliability(bins, num_rows)])),
  ]
