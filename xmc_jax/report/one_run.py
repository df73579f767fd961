"""Writes the page of one run: its training, its quality, examples, and its cost in time and memory."""

import functools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xmc_jax import config as configs
from xmc_jax import methods, metrics
from xmc_jax.distributed import runtime
from xmc_jax.metrics.hits import Hits, as_truth, find_hits
from xmc_jax.metrics.slices import FREQUENCIES
from xmc_jax.report import descriptions, drawing, examples, figures, label_table, pages, training_records
from xmc_jax.report import scores as pair_scores
from xmc_jax.retrieval.search import Ranking
from xmc_jax.runs import evaluate
from xmc_jax.runs.evaluate import Why
from xmc_jax.runs.ranking import gives_probabilities
from xmc_jax.runs.run import Run
from xmc_jax.runs.trained import Trained
from xmc_jax.storage import atomic

_VALIDATION = ("P@1", "P@5", "nDCG@5", "PSP@5", "R@10", "R@100")
_FOUND = (5, 100)  # k: the share of true labels among the first k
_DEEPEST = 100  # the largest number of labels that precision and recall are drawn for


def write(
  trained: Trained,
  ranking: Ranking,
  queries: np.ndarray,
  *,
  scores: str = "",
  suffix: str = "",
  seconds: Mapping[str, float] | None = None,
  why: Why | None = None,
) -> pathlib.Path:
  """Writes report/index.html, with its figures, labels.csv and, of probabilities, confusions.csv beside it.

  `suffix` is appended to their names. report/metrics.json must exist, and a test point must have a label.
  With several processes, all of them call this, and the main one writes. Labels are embedded only for a
  sample of points: some thousands of labels, whatever the data's size.

  Args:
    trained: the run.
    ranking: the ranking of the test points, `config.eval.k` deep.
    queries: `[N, D]` the test points' embeddings.
    scores: the scores that rank: 'hybrid', 'fused', a scorer, a source; '' is `config.eval.scores`.
    suffix: the suffix of report/metrics.json.
    seconds: time by stage so far; None reads it from the folder.
    why: explains why labels were ranked, as in `evaluate.examples`; None if the ranking gives no reasons.

  Returns:
    The page's path.
  """
  run, folder = trained.run, trained.run.workdir / "report"
  truth = run.dataset.test.unfiltered_positives
  scores = scores or run.config.eval.scores
  hits = find_hits(ranking.ids, as_truth(truth))
  sample, chosen = _sample_and_examples(trained, ranking, queries, scores, hits)
  reasons = examples.reasons(np.concatenate(chosen[:-1]), ranking, truth, why) if why else {}
  page = folder / f"index{suffix}.html"
  if not runtime.is_main_process():
    return page
  frequency = np.asarray((run.dataset.train.truth > 0).sum(0)).ravel()
  given = evaluate.best_sets(ranking) if gives_probabilities(scores) else None
  numbers = label_table.columns(truth, hits, frequency, given)
  report = json.loads((folder / f"metrics{suffix}.json").read_text(encoding="utf-8"))
  values = {
    **_of_run(run, scores),
    **_of_report(report, scores, ranking.ids.shape[1]),
    **_of_labels(ranking, hits, truth, frequency),
    "by_label": label_table.sortable(run.dataset, numbers),
    **_of_scores(ranking, hits, truth.nnz, report),
    "sample": sample,
    "chosen": chosen,
    "reasons": reasons,
    "ranked_labels": functools.partial(examples.labels, run.dataset, frequency, reasons, ranking),
    "seconds": training_records.seconds(run.workdir) if seconds is None else seconds,
  }
  drawn = _figures(values)
  for name, png in drawn.items():
    atomic.write_bytes(folder / f"{name}{suffix}.png", png)
  atomic.write_text(page, pages.render("run.html", figures=drawn, **values))
  label_table.write(folder, suffix, run.dataset, numbers, given)
  return page


def _sample_and_examples(
  trained: Trained, ranking: Ranking, queries: np.ndarray, scores: str, hits: Hits
) -> tuple[pair_scores.Sample, examples.Chosen]:
  """Returns a sample of scores and the points to show. All processes call it, to embed labels together."""
  run, test = trained.run, trained.run.dataset.test
  truth = test.unfiltered_positives

  def score(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return pair_scores.score_labels(trained, scores, queries[rows], labels)

  of_keys = scores == "fused" and run.method.key_temperature
  by_vectors = pair_scores.are_of_vectors(scores) and not of_keys
  sample = pair_scores.sample(ranking, hits, truth, test.filter, score if by_vectors else None)
  nearness = functools.partial(pair_scores.label_cosines, trained, queries.shape[1])
  return sample, examples.choose(ranking, hits, truth, nearness)


def _of_run(run: Run, scores: str) -> dict[str, Any]:
  """Returns what the page tells of a run's data, settings and training."""
  config = run.config
  recorded = training_records.curves(run.workdir)
  usual = descriptions.settings(methods.default_config(config.method.name))
  # As it was given: the opened run's names the encoder's copy in the folder.
  settings = descriptions.settings(methods.read_config(run.workdir / "config.json"))
  changed = {key: value for key, value in settings.items() if usual.get(key) != value}
  made_by = (
    f"{one.config.method.name} with encoder {pathlib.PurePath(one.config.encoder.name).name}"
    for one in run.members.values() or [run]
  )
  return {
    "title": f"{config.name}: test report",
    "run": run,
    "made_by": " and ".join(dict.fromkeys(made_by)),
    "scores": scores,
    "by_vectors": pair_scores.are_of_vectors(scores),
    "recorded": recorded,
    "refreshed": training_records.refreshed(run.method.refreshes, recorded),
    "per_epoch": training_records.steps_per_epoch(recorded),
    "last_step": recorded["train/loss"].steps[-1] if "train/loss" in recorded else 0,
    "memory": training_records.memory(recorded),
    "settings": {"combined runs": ", ".join(run.members)} if run.members else changed,
  }


def _of_report(report: Mapping[str, Any], scores: str, depth: int) -> dict[str, Any]:
  """Returns the tables of metrics: of the ranking, and of those by other scores."""
  means = report["metrics"]
  ks = [int(name[2:]) for name in means if name.startswith("P@")]
  columns = {scores: means, **report.get("by_source", {})}
  names = {name: name.replace("_", " ") for name in columns}
  metric_names = [name for name in configs.METRICS if name in means]
  return {
    "report": report,
    "calibration": report.get("calibration"),
    "ks": ks,
    "depth": depth,
    "shown": examples.SHOWN,
    "meanings": descriptions.METRICS,
    "quality": [
      ["percent", *(f"k = {k}" for k in ks)],
      *([kind, *(f"{kind}@{k}" for k in ks)] for kind in descriptions.METRICS if f"{kind}@1" in means),
    ],
    "rankings": {
      names[name]: descriptions.RANKINGS[name] for name in columns if name in descriptions.RANKINGS
    },
    "by_source": [
      ["percent", *names.values()],
      *([name, *(pages.percent(of[name]) for of in columns.values())] for name in metric_names),
    ]
    if len(columns) > 1
    else [],
  }


def _of_labels(ranking: Ranking, hits: Hits, truth: Any, frequency: np.ndarray) -> dict[str, Any]:
  """Returns what labels of each frequency add to metrics, and how many of them are found."""
  groups = metrics.frequency_groups(frequency)
  parts = metrics.contributions(ranking.ids, truth, groups, ks=(1, 5))
  parts = {name: parts[name] for name in ("P@1", "P@5")}
  count = len(parts["P@1"])
  true = np.bincount(groups[truth.indices], minlength=count)
  found = {
    f"first {k}": np.bincount(groups[hits.labels[hits.ranks < k]], minlength=count) / np.maximum(true, 1)
    for k in dict.fromkeys(min(k, ranking.ids.shape[1]) for k in _FOUND)
  }
  head = ["training points", "labels", "true test pairs"]
  rows = [
    [FREQUENCIES[group], f"{np.sum(groups == group):,}", f"{true[group]:,}"]
    + [pages.percent(part[group], 2) for part in parts.values()]
    + [pages.percent(share[group]) if true[group] else "–" for share in found.values()]
    for group in range(count)
  ]
  head += [f"part of {name}" for name in parts] + [f"in {name}, %" for name in found]
  return {"parts": parts, "found": found, "by_frequency": [head, *rows]}


def _of_scores(ranking: Ranking, hits: Hits, num_true: int, report: Mapping[str, Any]) -> dict[str, Any]:
  """Returns how many labels to keep, and whether probabilities hold."""
  calibration = report.get("calibration")
  cuts = pair_scores.cuts(ranking, hits, num_true, are_probabilities=bool(calibration))
  by_score = pair_scores.precision_recall(ranking, hits, num_true)
  right = np.cumsum(np.bincount(hits.ranks, minlength=ranking.ids.shape[1]))[:_DEEPEST]
  ranked = np.maximum(np.cumsum(np.sum(ranking.ids >= 0, axis=0)), 1)[:_DEEPEST]
  curves = {"score threshold": by_score, "first k labels": (right / ranked, right / num_true)}
  return {
    "cuts": [[rule, f"{of[0]:.2f}", *map(pages.percent, of[1:])] for rule, of in cuts.items()],
    "precision_recall": {name: curve for name, curve in curves.items() if len(curve[0])},
    "thresholds": _thresholds(calibration["bins"], len(ranking.ids)) if calibration else [],
    "steady": figures.STEADY,
  }


def _thresholds(bins: Sequence[Mapping[str, float]], num_rows: int) -> list[list[str]]:
  """Returns the table of bins, the highest first, and what a threshold at the lower end of each keeps."""
  head = ["probability", "pairs", "% of all", "predicted, %", "right, %"]
  table = [[*head, "labels per point that a threshold keeps", "of them right, %"]]
  pairs, right = 0.0, 0.0
  for part in reversed(bins):
    pairs += part["pairs"]
    right += part["pairs"] * part["right"]
    table.append(
      [f"{part['low']:.2f}–{part['high']:.2f}", f"{part['pairs']:,}", pages.percent(part["share"], 2)]
      + [pages.percent(share) for share in (part["predicted"], part["right"])]
      + [f"{pairs / num_rows:.2f}", pages.percent(right / pairs)]
    )
  return table


def _figures(values: Mapping[str, Any]) -> dict[str, bytes]:
  """Draws the figures of a page from what it shows; leaves out a figure without data."""
  recorded, refreshed = values["recorded"], values["refreshed"]
  drawn = {}
  if "train/loss" in recorded:
    loss = {"loss": recorded["train/loss"]}
    drawn["loss"] = drawing.png(figures.curves, "Training loss", "step", "loss", loss, refreshed=refreshed)
  validation = {name: recorded[f"eval/{name}"] for name in _VALIDATION if f"eval/{name}" in recorded}
  if validation:
    step = values["report"]["step"]
    drawn["validation"] = drawing.png(
      figures.curves, "Validation", "step", "percent", validation, refreshed=refreshed, tested=step
    )
  drawn["frequencies"] = drawing.png(
    figures.by_frequency, "Contribution by label frequency", "percentage points", values["parts"]
  )
  drawn["found"] = drawing.png(
    figures.by_frequency, "True labels found, by label frequency", "percent of true pairs", values["found"]
  )
  kind = "probabilities" if values["calibration"] else "scores"
  drawn["precision_recall"] = drawing.png(figures.precision_recall, values["precision_recall"])
  drawn["scores"] = drawing.png(figures.scores, values["sample"], kind)
  if values["calibration"]:
    drawn["reliability"] = drawing.png(figures.reliability, values["calibration"]["bins"])
  return drawn
