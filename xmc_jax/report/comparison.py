"""Compares several runs: what differs, and whether chance can explain it."""

import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xmc_jax import config as configs
from xmc_jax import metrics, sanitize
from xmc_jax.metrics.hits import as_truth
from xmc_jax.metrics.ranking import earnings
from xmc_jax.metrics.slices import FREQUENCIES
from xmc_jax.report import descriptions, drawing, examples, figures, finished_runs, pages, training_records
from xmc_jax.report import scores as score_curves
from xmc_jax.report.finished_runs import Finished
from xmc_jax.storage import atomic

LEVEL = 0.05
_KS, _SEED = (1, 3, 5, 10, 100), 0
_CURVE = "P@1"
_POINTS = 3  # that one run ranks better than another

Differences = Sequence[Mapping[str, metrics.Difference]]


def compare(workdirs: Sequence[pathlib.Path], destination: str = "", scores: str = "") -> None:
  """Prints a table of test metrics and writes compare.html, for `--mode=compare RUN RUN ...`.

  Each run is compared with the first, with 95 % intervals and p-values of a paired bootstrap over test
  points. With several runs, p-values are adjusted by Holm's method, metric by metric. Test points are not
  ranked again: the runs' predictions/test.npz or predictions/test_SCORES.npz are read.

  Args:
    workdirs: folders of two or more finished runs, tested on the same points.
    destination: the page; '' is report/compare.html of the first run, or report/compare_SCORES.html.
    scores: the scores that rank the test points in all runs; '' is each run's own.

  Raises:
    UserError: fewer than two runs, a run that is not finished or not ranked by these scores, other test
      data, or a page that cannot be written.
  """
  runs = finished_runs.opened(workdirs, scores)
  means, differences = measured(runs)
  print(sanitize.text(console_table(runs, means, differences)))
  usual = runs[0].workdir / "report" / f"compare{f'_{scores}' if scores else ''}.html"
  path = pathlib.Path(destination).expanduser() if destination else usual
  atomic.write_text(path, _page(runs, means, differences))
  print(sanitize.text(f"\nwritten to {path}"))


def measured(runs: Sequence[Finished]) -> tuple[list[dict[str, float]], list[dict[str, metrics.Difference]]]:
  """Returns the metric means of each run, and the differences of each later run to the first.

  Adjusts p-values for the number of runs. All runs use the propensities of the first run's data and config.
  """
  first = runs[0]
  settings, truth = first.config.eval, first.dataset.test.unfiltered_positives
  inverse = metrics.inverse_propensity(
    first.dataset.train.truth, settings.propensity_a, settings.propensity_b
  )
  deepest = min(run.config.eval.k for run in runs)
  with_ks: dict[str, Any] = {"ks": [k for k in _KS if k <= deepest], "inverse_propensity": inverse}
  rankings = [run.ranking.ids for run in runs]
  means = [metrics.evaluate(ids, truth, **with_ks) for ids in rankings]
  found = metrics.paired_differences(rankings, truth, seed=_SEED, **with_ks)
  for name in found[0]:
    adjusted = metrics.holm([each[name].p_value for each in found])
    for each, p_value in zip(found, adjusted.tolist()):
      each[name] = each[name]._replace(p_value=p_value)
  return means, found


def console_table(
  runs: Sequence[Finished], means: Sequence[Mapping[str, float]], differences: Differences
) -> str:
  """Returns metrics in percent as text, a row each; '*' marks a difference with an adjusted p < `LEVEL`."""
  names = [name for name in configs.METRICS if name in means[0]]
  cells = [["", *(run.letter for run in runs)]]
  for name in names:
    first = f"{100 * means[0][name]:.2f}"
    cells.append(
      [name, first, *(_console_cell(mean[name], each[name]) for mean, each in zip(means[1:], differences))]
    )
  widths = [max(map(len, column)) for column in zip(*cells)]
  lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in cells]
  legend = [
    f"{run.letter}  {run.workdir}  ({run.method}, encoder {run.encoder}, ranked by {run.scores})"
    for run in runs
  ]
  return "\n".join([*legend, "", *lines, "", _explained(runs)])


def _console_cell(mean: float, found: metrics.Difference) -> str:
  star = "*" if found.p_value < LEVEL else " "
  between = f"[{100 * found.low:+.2f}, {100 * found.high:+.2f}]"
  return f"{100 * mean:.2f} {100 * found.value:+.2f}{star} {between} {pages.p_value(found.p_value)}"


def _explained(runs: Sequence[Finished]) -> str:
  several = (
    f", adjusted for {len(runs) - 1} runs by Holm's method, each metric for itself" if len(runs) > 2 else ""
  )
  return (
    f"Percent on {len(runs[0].dataset.test):,} test points; differences to A with 95 % intervals, of a "
    f"paired bootstrap over points, and two-sided p-values{several}; * is p < {LEVEL}, which "
    "chance alone gives for one metric in 20. Another seed may move a run by more than other points do."
  )


def _page(runs: Sequence[Finished], means: Sequence[Mapping[str, float]], differences: Differences) -> str:
  first = runs[0]
  truth = first.dataset.test.unfiltered_positives
  groups = metrics.frequency_groups(first.frequency)
  parts = [metrics.contributions(run.ranking.ids, truth, groups, ks=(1, 5)) for run in runs]
  names = [f"{run.letter} {drawing.name_of(run.name)}" for run in runs]
  main = [name for name in configs.METRICS if name in means[0]]
  others = [name for kind in metrics.FAMILIES for name in means[0] if name.startswith(f"{kind}@")]
  return pages.render(
    "comparison.html",
    title=f"Comparison of {len(runs)} runs",
    runs=runs,
    names=names,
    explanation=_explained(runs),
    level=LEVEL,
    main=[_metric_row(name, means, differences) for name in main],
    others=[_metric_row(name, means, differences) for name in others if name not in main],
    curve=_CURVE,
    curves=_curves(runs, names),
    frequency_figures={
      metric: drawing.png(
        figures.by_frequency,
        f"{metric} by label frequency",
        "percentage points",
        {name: part[metric] for name, part in zip(names, parts)},
      )
      for metric in ("P@1", "P@5")
    },
    by_frequency=_by_frequency(runs, parts),
    pairs=[_pair(first, other) for other in runs[1:]],
    ranked_labels=functools.partial(examples.labels, first.dataset, first.frequency, {}),
    times=_times(runs),
    settings=_settings(runs),
  )


def _metric_row(name: str, means: Sequence[Mapping[str, float]], differences: Differences) -> list:
  return [name, means[0][name], *((mean[name], each[name]) for mean, each in zip(means[1:], differences))]


def _curves(runs: Sequence[Finished], names: Sequence[str]) -> dict[str, bytes]:
  """Draws the curves of all runs into common figures; leaves out a figure if no run has its data."""
  pictures = {}
  for key, title, recorded, x, y in (
    ("validation", f"Validation {_CURVE}", f"eval/{_CURVE}", "epoch", "percent"),
    ("validation_by_time", f"Validation {_CURVE}", f"eval/{_CURVE}", "minutes of training", "percent"),
    ("losses", "Training loss", "train/loss", "epoch", "loss"),
  ):
    lines = {name: line for name, run in zip(names, runs) if (line := _line(run, recorded, x))}
    if lines:
      pictures[key] = drawing.png(figures.curves, title, x, y, lines)
  num_true = runs[0].dataset.test.unfiltered_positives.nnz
  curves = [score_curves.precision_recall(run.ranking, run.hits, num_true) for run in runs]
  if any(len(precision) for precision, _ in curves):
    pictures["precision_recall"] = drawing.png(figures.precision_recall, dict(zip(names, curves)))
  return pictures


def _line(run: Finished, recorded: str, x: str) -> tuple[np.ndarray, np.ndarray] | None:
  """Returns a curve over epochs, or over minutes; None if the run did not record it."""
  curve, spent = run.curves.get(recorded), run.curves.get("time/train")
  per_epoch = training_records.steps_per_epoch(run.curves)
  if curve and per_epoch and x == "epoch":
    return curve.steps / per_epoch, curve.values
  if curve and spent and x != "epoch":
    return np.interp(curve.steps, spent.steps, spent.values) / 60, curve.values
  return None


def _by_frequency(runs: Sequence[Finished], parts: Sequence[Mapping[str, np.ndarray]]) -> list[list[str]]:
  """Returns the table of what labels of each frequency contribute to P@1 and P@5 in each run."""
  columns = [
    (f"{name} {run.letter}", part[name]) for name in ("P@1", "P@5") for run, part in zip(runs, parts)
  ]
  rows = [
    [frequency, *(pages.percent(values[group], 2) for _, values in columns)]
    for group, frequency in enumerate(FREQUENCIES[: len(columns[0][1])])
  ]
  return [["training points", *(head for head, _ in columns)], *rows]


def _pair(first: Finished, other: Finished) -> dict[str, Any]:
  """Returns how many points another run ranks better and worse than the first, and where they differ most."""
  gain = gained_by_row(other) - gained_by_row(first)
  better, worse = int(np.sum(gain > 0)), int(np.sum(gain < 0))
  return {
    "other": other,
    "better": better,
    "worse": worse,
    "same": len(gain) - better - worse,
    "gained": most(gain),
    "lost": most(-gain),
  }


def gained_by_row(run: Finished) -> np.ndarray:
  """Returns `[N]` nDCG@5 of each test point."""
  truth = as_truth(run.dataset.test.unfiltered_positives)
  part = earnings(run.hits, truth, (5,))["nDCG@5"]
  return np.bincount(run.hits.rows, part.gains, minlength=len(truth.counts))


def most(gain: np.ndarray) -> np.ndarray:
  """Returns the few rows with the largest positive gain; orders ties at random."""
  shuffled = np.random.default_rng(_SEED).permutation(np.flatnonzero(gain > 0))
  return shuffled[np.argsort(-gain[shuffled], kind="stable")[:_POINTS]]


def _times(runs: Sequence[Finished]) -> list[list[str]]:
  stages = dict.fromkeys(stage for run in runs for stage in run.seconds)
  spent = [
    [
      descriptions.stage(stage),
      *(pages.duration(run.seconds[stage]) if stage in run.seconds else "" for run in runs),
    ]
    for stage in stages
  ]
  total = ["all", *(pages.duration(sum(run.seconds.values())) for run in runs)]
  peaks = [training_records.memory(run.curves).get("host") for run in runs]
  memory = ["peak memory of the process", *(f"{peak / 1e9:.2f} GB" if peak else "" for peak in peaks)]
  return [*spent, total, memory]


def _settings(runs: Sequence[Finished]) -> list[list[str]]:
  """Returns the settings that differ, and their values in all runs; a method has settings of its own."""
  every = [descriptions.settings(run.config) for run in runs]
  keys = dict.fromkeys(key for values in every for key in values)
  rows = [[key, *(values.get(key, "") for values in every)] for key in keys]
  return [row for row in rows if len(set(row[1:])) > 1]
