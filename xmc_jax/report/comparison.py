"""Compares several runs: what differs, and whether chance can explain it."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from xmc_jax import config as configs
from xmc_jax import metrics, sanitize
from xmc_jax.metrics.slices import FREQUENCIES
from xmc_jax.report import (
  differing_points,
  drawing,
  finished_runs,
  scores,
  side_figures,
  tables,
  training_records,
)
from xmc_jax.report.finished_runs import Finished
from xmc_jax.report.html import Markup, document, element, image, isolated, joined, note, paragraph, table
from xmc_jax.storage import atomic

LEVEL = 0.05
_KS, _SEED = (1, 3, 5, 10, 100), 0
_CURVE = "P@1"

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
  if not drawing.available():
    print(drawing.MISSING)
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


def parts_by_frequency(runs: Sequence[Finished]) -> list[dict[str, np.ndarray]]:
  """Returns what labels of each frequency contribute to the metrics at 1 and 5, for each run."""
  groups, truth = metrics.frequency_groups(runs[0].frequency), runs[0].dataset.test.unfiltered_positives
  return [metrics.contributions(run.ranking.ids, truth, groups, ks=(1, 5)) for run in runs]


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
  legend = [f"{run.letter}  {run.workdir}  ({_method(run)})" for run in runs]
  return "\n".join([*legend, "", *lines, "", _explained(runs)])


def _console_cell(mean: float, found: metrics.Difference) -> str:
  star = "*" if found.p_value < LEVEL else " "
  between = f"[{100 * found.low:+.2f}, {100 * found.high:+.2f}]"
  return f"{100 * mean:.2f} {100 * found.value:+.2f}{star} {between} {_p(found.p_value)}"


def _p(value: float) -> str:
  return f"p={value:.3f}" if value >= 0.0005 else "p<.001"


def _explained(runs: Sequence[Finished]) -> str:
  several = (
    f", adjusted for {len(runs) - 1} runs by Holm's method, each metric for itself" if len(runs) > 2 else ""
  )
  return (
    f"Percent on {len(runs[0].dataset.test):,} test points; differences to A with 95 % intervals, of a "
    f"paired bootstrap over points, and two-sided p-values{several}; * is p < {LEVEL}, which "
    "chance alone gives for one metric in 20. Another seed may move a run by more than other points do."
  )


def _method(run: Finished) -> str:
  encoder = pathlib.PurePath(run.config.encoder.name).name
  return f"{run.config.method.name}, encoder {encoder}, ranked by {run.scores}"


def _page(runs: Sequence[Finished], means: Sequence[Mapping[str, float]], differences: Differences) -> str:
  title = f"Comparison of {len(runs)} runs"
  parts = [
    element("h1", title),
    paragraph(f"On the {len(runs[0].dataset.test):,} test points and {runs[0].dataset.num_labels:,} labels "
              f"of {runs[0].dataset.name}. The other runs are compared with A."),
    *([] if drawing.available() else [note(drawing.MISSING)]),
    _runs(runs),
    element("h2", "How good they are"),
    note(_explained(runs)),
    *_every_metric(runs, means, differences),
    *_figures(runs),
    *_by_frequency(runs, parts_by_frequency(runs)),
    element("h2", "Where they differ most"),
    *differing_points.sections(runs),
    element("h2", "Time"),
    _times(runs),
    element("h2", "Settings that differ"),
    _settings(runs),
  ]  # fmt: skip
  return document(title, *parts)


def _runs(runs: Sequence[Finished]) -> Markup:
  rows = [
    [element("b", run.letter), isolated(run.name, 80), run.config.method.name,
     pathlib.PurePath(run.config.encoder.name).name, run.scores.replace("_", " "),
     f"{run.step:,}", f"{run.config.train.seed}",
     tables.duration(run.seconds.get("train", 0.0))]
    for run in runs
  ]  # fmt: skip
  head = ["", "run", "method", "encoder", "ranked by", "step tested", "seed", "training"]
  return table(head, rows, text_columns=(1, 2, 3, 4))


def _metrics(
  runs: Sequence[Finished],
  means: Sequence[Mapping[str, float]],
  differences: Differences,
  names: Sequence[str],
) -> Markup:
  def cells(name: str) -> Iterator[object]:
    yield f"{100 * means[0][name]:.2f}"
    for mean, each in zip(means[1:], differences):
      found = each[name]
      difference = (
        element("b", f"{_signed(found.value)} *") if found.p_value < LEVEL else _signed(found.value)
      )
      between = element("small", f"{_signed(found.low)} to {_signed(found.high)}, {_p(found.p_value)}")
      line = Markup("<br>")
      yield joined([f"{100 * mean[name]:.2f}", line, difference, line, between])

  head = ["percent", *map(side_figures.name, runs)]
  return table(head, [[name, *cells(name)] for name in names])


def _signed(value: float) -> str:
  return f"{100 * value:+.2f}".replace("-", "−")


def _every_metric(
  runs: Sequence[Finished], means: Sequence[Mapping[str, float]], differences: Differences
) -> list[Markup]:
  main = [name for name in configs.METRICS if name in means[0]]
  kinds = [f"{kind}@{k}" for kind in tables.FAMILIES for k in tables.cutoffs(means[0])]
  others = [name for name in kinds if name in means[0] and name not in main]
  parts = [_metrics(runs, means, differences, main)]
  if others:
    summary = Markup("<summary>The other metrics</summary>")
    parts.append(element("details", summary, _metrics(runs, means, differences, others)))
  return parts


def _by_frequency(runs: Sequence[Finished], parts: Sequence[Mapping[str, np.ndarray]]) -> list[Markup]:
  """Builds the section on what labels of each frequency contribute to P@1 and P@5 in each run."""
  names = [name for name in ("P@1", "P@5") if name in parts[0]]
  pictures = [
    (
      side_figures.frequencies(runs, name, [found[name] for found in parts]),
      f"What labels of each frequency add to {name}.",
    )
    for name in names
    if drawing.available()
  ]
  head = [f"{name} {run.letter}" for name in names for run in runs]
  rows = [
    [frequency, *(f"{100 * found[name][group]:.2f}" for name in names for found in parts)]
    for group, frequency in enumerate(FREQUENCIES[: len(parts[0]["P@1"])])
  ]
  explanation = "In percentage points, by the training points of labels in A."
  return [
    element("h2", "On frequent and on rare labels"),
    note(explanation),
    _shown(pictures),
    table(["training points", *head], rows),
  ]


def _shown(drawn: Sequence[tuple[Any, str]]) -> Markup:
  """Returns figures with their captions."""
  pictures = [image(drawing.png(figure), f"Figure: {caption}", caption) for figure, caption in drawn]
  return element("div", *pictures, css="figures") if pictures else Markup("")


def _figures(runs: Sequence[Finished]) -> list[Markup]:
  """Draws the curves of all runs into common figures; leaves out a figure if no run has its data."""
  if not drawing.available():
    return []
  drawn = []
  if any(f"eval/{_CURVE}" in run.curves for run in runs):
    drawn += [
      (side_figures.validation(runs, _CURVE), f"{_CURVE} on the rows held out, by vectors, over epochs."),
      (side_figures.validation(runs, _CURVE, by_time=True), "The same over the time of training steps."),
    ]
  if any("train/loss" in run.curves for run in runs):
    drawn.append((side_figures.losses(runs), "Only losses of one kind and one temperature compare."))
  num_true = runs[0].dataset.test.unfiltered_positives.nnz
  found = [scores.precision_recall(run.ranking, run.hits, num_true, _SEED) for run in runs]
  if any(len(precision) for precision, _ in found):
    caption = "All points together, one threshold of scores for all, within each point's ranking."
    drawn.append((side_figures.precision_recall(runs, found), caption))
  return [element("h2", "Curves"), _shown(drawn)] if drawn else []


def _times(runs: Sequence[Finished]) -> Markup:
  stages = dict.fromkeys(stage for run in runs for stage in run.seconds)
  rows = [
    [
      tables.stage(stage),
      *(tables.duration(run.seconds[stage]) if stage in run.seconds else "" for run in runs),
    ]
    for stage in stages
  ]
  rows.append(
    [element("b", "all"), *(element("b", tables.duration(sum(run.seconds.values()))) for run in runs)]
  )
  rows.append(["peak memory of the process", *(_memory(training_records.memory(run.curves)) for run in runs)])
  return table(["stage", *(run.letter for run in runs)], rows)


def _memory(peaks: Mapping[str, float]) -> str:
  return f"{peaks['host'] / 1e9:.2f} GB" if "host" in peaks else ""


def _settings(runs: Sequence[Finished]) -> Markup:
  every = [tables.settings(run.config) for run in runs]
  known = dict.fromkeys(key for settings in every for key in settings)  # a method has its own
  keys = [key for key in known if len({settings.get(key, "") for settings in every}) > 1]
  if not keys:
    return note("None.")
  columns = range(1, len(runs) + 1)
  rows = [[key, *(isolated(settings.get(key, ""), 80) for settings in every)] for key in keys]
  return table(["setting", *(run.letter for run in runs)], rows, text_columns=columns)
