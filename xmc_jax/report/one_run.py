"""Writes the page of one run: its training, its quality, examples, and its cost in time and memory."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import ml_collections
import numpy as np

from xmc_jax import methods
from xmc_jax.distributed import runtime
from xmc_jax.metrics.hits import Hits, as_truth, find_hits
from xmc_jax.report import (
  drawing,
  examples,
  figures,
  label_section,
  score_section,
  scores,
  tables,
  training_records,
)
from xmc_jax.report.html import Markup, document, element, image, joined, note, paragraph
from xmc_jax.retrieval.search import Ranking
from xmc_jax.runs.evaluate import Why
from xmc_jax.runs.run import Run
from xmc_jax.storage import atomic
from xmc_jax.types import PyTree

_SEED = 0


class _Material(NamedTuple):
  """Holds the contents of a page.

  Attributes:
    report: the content of metrics.json.
    curves, refreshed: the readings during training, and the steps of its refreshes.
    hits: the ranking's true pairs.
    sample: a sample of scores; None if no test point has a label.
    choices: the points to show.
    reasons: for each point, a line by label on why it was ranked; empty if the ranking gives no reasons.
    frequency: `[L]` number of training points of each label.
    seconds: time by stage.
  """

  report: Mapping[str, Any]
  curves: training_records.Curves
  refreshed: Mapping[str, np.ndarray]
  hits: Hits
  sample: scores.Sample | None
  choices: list[examples.Choice]
  reasons: Mapping[int, Mapping[int, str]]
  frequency: np.ndarray
  seconds: Mapping[str, float]


def write(
  run: Run,
  ranking: Ranking,
  queries: np.ndarray,
  params: PyTree,
  extra_state: PyTree,
  *,
  scores: str = "",
  suffix: str = "",
  seconds: Mapping[str, float] | None = None,
  why: Why | None = None,
) -> pathlib.Path:
  """Writes report/index.html, with its figures and labels.csv beside it; `suffix` is appended to their names.

  report/metrics.json must exist. With several processes, all of them call this, and the main one writes.
  Labels are embedded only for a sample of points: some thousands of labels, whatever the data's size.

  Args:
    run: the run.
    ranking: the ranking of the test points, `config.eval.k` deep.
    queries: `[N, D]` the test points' embeddings.
    params, extra_state: as trained.
    scores: the scores that rank: 'hybrid', 'fused', a view, a source; '' is `config.eval.scores`.
    suffix: the suffix of report/metrics.json.
    seconds: time by stage so far; None reads it from the folder.
    why: explains why labels were ranked, as in `evaluate.examples`; None if the ranking gives no reasons.

  Returns:
    The page's path.
  """
  folder = run.workdir / "report"
  chosen = scores or run.config.eval.scores
  hits = find_hits(ranking.ids, as_truth(run.dataset.test.unfiltered_positives))
  sample, choices = _sample_and_examples(run, ranking, queries, params, extra_state, chosen, hits)
  reasons = examples.reasons(choices, ranking, run.dataset.test.unfiltered_positives, why) if why else {}
  page = folder / f"index{suffix}.html"
  if not runtime.is_main_process():
    return page
  curves = training_records.curves(run.workdir)
  material = _Material(
    report=json.loads((folder / f"metrics{suffix}.json").read_text(encoding="utf-8")),
    curves=curves,
    refreshed=training_records.refreshed(run.method.refreshes, curves),
    hits=hits,
    sample=sample,
    choices=choices,
    reasons=reasons,
    frequency=np.asarray((run.dataset.train.truth > 0).sum(0)).ravel().astype(np.int64),
    seconds=training_records.seconds(run.workdir) if seconds is None else dict(seconds),
  )
  atomic.write_text(page, _page(run, ranking, chosen, material, suffix))
  label_section.write_table(folder / f"labels{suffix}.csv", run.dataset, hits, material.frequency)
  return page


def _sample_and_examples(
  run: Run,
  ranking: Ranking,
  queries: np.ndarray,
  params: PyTree,
  extra_state: PyTree,
  chosen: str,
  hits: Hits,
) -> tuple[scores.Sample | None, list[examples.Choice]]:
  """Returns a sample of scores and the points to show. All processes call it, to embed labels together."""
  truth = run.dataset.test.unfiltered_positives
  outcome = examples.outcome(ranking, hits, np.diff(truth.indptr))
  if not truth.nnz:
    return None, []
  planned, near = scores.plan(truth, _SEED), examples.near_pairs(ranking, outcome, truth, _SEED)
  filtered, of_keys = run.dataset.test.filter, chosen == "fused" and run.method.key_temperature
  by_vectors = scores.are_of_vectors(chosen) and not of_keys
  ids = np.concatenate([*((planned.labels, planned.random_labels) if by_vectors else ()), *near[1:]])
  # If the ranking is not by vectors, the embeddings of label texts tell how near two labels are.
  view = chosen if by_vectors else "encoder"
  extra_state = run.extra_state_to_rank(params, extra_state)
  vectors = scores.LabelVectors(run, params, extra_state, view, ids) if len(ids) else None
  if by_vectors:
    sample = scores.sample(planned, cast(scores.LabelVectors, vectors), queries, ranking, truth, filtered)
  else:
    sample = scores.sample_of_ranking(planned, ranking, truth, filtered)
  return sample, list(examples.choose(ranking, outcome, near, vectors, _SEED))


def _page(run: Run, ranking: Ranking, chosen: str, material: _Material, suffix: str) -> str:
  report, config, test = material.report, run.config, run.dataset.test
  truth = test.unfiltered_positives
  draw = _Figures(run.workdir / "report", suffix)
  by = _ranked_by(chosen, bool(run.method.scorers))
  lead = (
    f"{config.method.name} with encoder {pathlib.PurePath(config.encoder.name).name}, on {run.dataset.name}: "
    f"{len(run.data.train):,} training points, {len(run.data.validation):,} for validation, "
    f"{len(test):,} for this test, {run.dataset.num_labels:,} labels. "
    f"Parameters of step {report['step']:,}{by}."
  )
  parts = [
    element("h1", f"{config.name}: test report"),
    paragraph(lead),
    *_verdict(report),
    *([] if draw.on else [note(drawing.MISSING)]),
    *_quality(material, chosen),
    *_training(run, material, chosen, draw),
    *label_section.section(ranking, material.hits, truth, material.frequency, draw.side_by_side),
    *score_section.section(
      ranking, material.hits, material.sample, truth, report.get("calibration"), draw.side_by_side
    ),
    *_examples(run, ranking, material),
    *_cost(material),
    *_settings(config),
  ]
  return document(f"{config.name}: test report", *parts)


def _ranked_by(chosen: str, has_views: bool) -> str:
  if chosen == "hybrid":
    return ", ranked by all sources together, whose scores are probabilities that a label is right"
  if not scores.are_of_vectors(chosen):
    return f", ranked by the source {chosen.replace('_', ' ')} alone"
  if not has_views:
    return ""
  return f", ranked by {'both scores' if chosen == 'fused' else f'the {chosen}'}"


def _verdict(report: Mapping[str, Any]) -> list[Markup]:
  """Says in two sentences how good the run is; nothing if no test point has a label."""
  means, with_labels = report["metrics"], report["rows"] - report["rows_without_labels"]
  if not with_labels:
    return []
  low, high = map(tables.percent, report["intervals_95"]["P@1"])
  k = max(k for k in tables.cutoffs(means) if k <= 5)
  first = element("b", f"The first label is right for {tables.percent(means['P@1'])} of 100 test texts")
  more = Markup(
    f" ({low} to {high} for other texts of the same kind). The first {k} labels hold "
    f"{tables.percent(means[f'R@{k}'])} % of a text's right labels, on average."
  )
  return [paragraph(first, more)]


class _Figures:
  """Draws figures into a folder and a page, if matplotlib is installed."""

  def __init__(self, folder: pathlib.Path, suffix: str):
    self._folder, self._suffix, self.on = folder, suffix, drawing.available()

  def side_by_side(self, *drawn: tuple[str, Any, str]) -> list[Markup]:
    """Returns figures side by side; each is given as `(name, () -> figure, caption)`."""
    if not self.on:
      return []
    made = []
    for name, make, caption in drawn:
      png = drawing.png(make())
      atomic.write_bytes(self._folder / f"{name}{self._suffix}.png", png)
      made.append(image(png, f"Figure: {caption}", caption))
    return [element("div", *made, css="figures")] if made else []


def _quality(material: _Material, chosen: str) -> list[Markup]:
  report = material.report
  without = report["rows_without_labels"]
  parts = [
    element("h2", "How good it is"),
    note("In percent; below each the 95 % interval that other test points of the same kind would give "
         "(bootstrap over points). It does not tell what another seed would give."),
    tables.metrics(report["metrics"], report["intervals_95"]),
  ]  # fmt: skip
  if without:
    parts.append(
      note(f"{without:,} of {report['rows']:,} test points have no label: they count as 0, and not in R.")
    )
  if others := report.get("by_source"):
    parts += [element("h3", "By other scores"), tables.by_source(others, chosen, report["metrics"])]
    known = (name for name in others if name in tables.RANKINGS)
    parts.append(
      note("; ".join(f"{name.replace('_', ' ')}: {tables.RANKINGS[name]}" for name in known) + ".")
    )
  return parts


def _training(run: Run, material: _Material, chosen: str, draw: _Figures) -> list[Markup]:
  curves, refreshed, step = material.curves, material.refreshed, material.report["step"]
  drawn = []
  if "train/loss" in curves:
    drawn.append(("loss", lambda: figures.loss(curves, refreshed), "The loss of each epoch's last step."))
  if any(f"eval/{name}" in curves for name in figures.VALIDATION):
    caption = "Metrics on the rows held out, as training went on; dotted, the parameters that were tested."
    if not scores.are_of_vectors(chosen):
      caption += " Here the method's own vectors rank; the test's metrics are of the other ranking."
    drawn.append(("validation", lambda: figures.validation(curves, refreshed, step), caption))
  sentences = []
  if per_epoch := training_records.steps_per_epoch(curves):
    last = int(curves["train/loss"].steps[-1])
    sentences.append(f"{last:,} steps, {per_epoch:,} to an epoch.")
  if not len(run.data.validation):
    sentences.append("No rows were held out for validation: the last parameters were tested.")
  if run.config.train.refit:
    sentences.append("Then the run was trained on all rows, for the best number of epochs; that was tested.")
  times = (f"{name} {len(steps)} time{'s' * (len(steps) != 1)}" for name, steps in refreshed.items())
  sentences.append(
    f"Refreshed during training (marks below the figures): {', '.join(times)}." if refreshed else ""
  )
  text = " ".join(filter(None, sentences)) or "No metrics were recorded."
  return [element("h2", "How it learnt"), note(text), *draw.side_by_side(*drawn)]


def _examples(run: Run, ranking: Ranking, material: _Material) -> list[Markup]:
  test, names = run.dataset.test, run.dataset.labels.texts
  cards = examples.section(material.choices, test, names, ranking, material.frequency, material.reasons)
  legend = (
    f"The first {examples.SHOWN} labels of each point with their scores: ✓ is a true label, ✗ is not "
    "labelled as true, ○ is a true label that is missing above."
  )
  if material.reasons:
    legend += " Below each label is why it was ranked, with the training text that counts most."
  return [element("h2", "Examples"), note(legend), cards] if material.choices else []


def _cost(material: _Material) -> list[Markup]:
  parts = [element("h2", "Time and memory")]
  if material.seconds:
    parts.append(tables.stages(material.seconds))
  return [*parts, tables.memory(training_records.memory(material.curves))]


def _settings(config: ml_collections.ConfigDict) -> list[Markup]:
  changed = tables.settings(config, methods.default_config(config.method.name).to_dict())
  rows = [[key, value] for key, value in changed.items()]
  shown = tables.table(["setting", "value"], rows, text_columns=(1,)) if rows else note("None.")
  inner = joined([Markup("<summary>Settings that differ from the defaults</summary>"), shown])
  return [element("h2", "Settings"), element("details", inner)]
