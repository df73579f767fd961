"""Tests a trained run: prints its table and examples, writes its report and its page."""

from xmc_jax import console, data, metrics, report
from xmc_jax.console import say, show
from xmc_jax.distributed import runtime
from xmc_jax.errors import UserError
from xmc_jax.runs import evaluate, ranking
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.runs.run import Run
from xmc_jax.runs.trained import Trained
from xmc_jax.storage import atomic
from xmc_jax.training import guide


def test(trained: Trained, writer: MetricWriter) -> dict[str, float]:
  """Tests a finished run, and writes the time that it took; returns the test metrics, or none."""
  run = trained.run
  if why := why_none(run.dataset):
    say(f"note: {why}, so there is no test table")
  means = {} if why else write(trained, writer)[0]
  show(guide.next_commands(run))
  if runtime.is_main_process():
    (run.workdir / "report").mkdir(exist_ok=True)
    atomic.write_json(run.workdir / "report" / "seconds.json", writer.seconds)
  return means


def why_none(dataset: data.Dataset) -> str:
  """Returns why there can be no test table, in words; '' if there can."""
  if not len(test := dataset.test):
    return f"{dataset.name} has no test rows"
  return "" if test.unfiltered_positives.nnz else f"none of the {len(test):,} test rows has a label"


def write(
  trained: Trained, writer: MetricWriter, scores: str = "", suffix: str = ""
) -> tuple[dict[str, float], evaluate.Ranking]:
  """Ranks the test rows by some scores and their parts; prints the table, writes the report and its page.

  The files' names end in `suffix`. Returns the means and the ranking by `scores`, as for `Trained.ranker`.
  """
  run, step = trained.run, trained.step
  test, chosen = run.dataset.test, scores or run.config.eval.scores
  run.check_scores(chosen)
  with writer.stage("test"):
    queries = evaluate.embed_split(trained, test)
    ranked, why = evaluate.rank_test(trained, queries, chosen)
    means = {name: evaluate.score(run, test, found) for name, found in ranked.items()}
  _show(run, means, ranked[chosen], why, step)
  written = f"report/metrics{suffix}.json, predictions/test{suffix}.npz"
  try:
    by_source = {name: of_source for name, of_source in means.items() if name != chosen}
    # `suffix` gives the files other names if the ranking is not by the run's own settings.
    probable = ranking.gives_probabilities(chosen)
    with writer.stage("test"):
      evaluate.write_report(run, test, ranked[chosen], step, by_source, suffix, probable, means[chosen])
    if run.config.eval.report_page:
      with writer.stage("page"):
        seconds = writer.seconds if writer.seconds["prepare"] else None  # without training, of little use
        report.write(trained, ranked[chosen], queries, scores=chosen, suffix=suffix, seconds=seconds, why=why)
      written = f"report/index{suffix}.html (open it in a browser), {written}"
    show(f"\nwritten to {run.workdir}/: {written}")
  except UserError as error:  # a read-only folder or a full disk takes no result away
    say(f"note: {error}; the table above is complete")
  say(writer.stage_summary())
  return means[chosen], ranked[chosen]


def _show(
  run: Run,
  means: dict[str, dict[str, float]],
  ranked: evaluate.Ranking,
  why: evaluate.Why | None,
  step: int,
) -> None:
  """Prints the test table and examples; the chosen scores are the first of `means`."""
  test, chosen = run.dataset.test, next(iter(means))
  truth = test.unfiltered_positives
  by = f", by {'both' if chosen == 'fused' else chosen}" if len(means) > 1 else ""
  without = metrics.num_rows_without_labels(truth)
  unlabelled = f" ({without:,} without labels count as 0, and not in R)" if without else ""
  show(f"test metrics in percent{by}, {len(test):,} points{unlabelled}, parameters of step {step:,}")
  columns = {name: evaluate.shown(of_source) for name, of_source in means.items()}
  show(console.table(columns))
  show(guide.meanings(columns[chosen], columns))
  if ranking.gives_probabilities(chosen):
    show(guide.of_sets(metrics.score_sets(evaluate.best_sets(ranked), truth)))
    if off := evaluate.calibration(ranked, truth)["note"]:
      show(f"note: {off}")
  if run.config.eval.num_examples:
    show("\nexamples: ✓ a right label, · a wrong one, ○ a right one that is not among the first three")
    show(evaluate.examples(run, test, ranked, run.config.eval.num_examples, why))
