"""Runs each --mode: reads a config or a run's folder, and shows the result to the user."""

import contextlib
import json
import math
import pathlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ml_collections

from xmc_jax import config as configs
from xmc_jax import console, data, methods, metrics, report
from xmc_jax import plan as plans
from xmc_jax.cli import guide
from xmc_jax.cli.train_run import train_run
from xmc_jax.config.keys import LARGEST
from xmc_jax.console import say, show
from xmc_jax.data import formats
from xmc_jax.distributed import runtime
from xmc_jax.errors import UserError
from xmc_jax.plan.table import table
from xmc_jax.runs import create, evaluate, label_frequency, ranking
from xmc_jax.runs import run as runs
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.runs.trained import Trained, to_test
from xmc_jax.storage import atomic

if TYPE_CHECKING:
  from xmc_jax.runs.model import Model


def prepare(config: ml_collections.ConfigDict) -> None:
  """Runs `--mode=prepare`: reads, tokenises and checks the data; trains nothing and makes no run's folder."""
  prepared, config = create.prepare(config)
  show(data.summary(prepared.manifest))
  show(f"prepared in {prepared.folder}, where --mode=train finds it")
  try:
    create.fit_to_data(config, prepared)
  except UserError as error:
    say(f"note: with these settings --mode=train will refuse: {error}")


def plan(config: ml_collections.ConfigDict, reads_data: bool = True) -> None:
  """Runs `--mode=plan`: estimates time and memory of a run; refuses one that cannot fit.

  Sizes are those of the data, if they are here and `reads_data` is set, else those of `config.plan`.
  """
  if methods.builds_on_a_run(config):
    if config.init_from:
      config = create.with_encoder_of(config)
    else:
      supposed = f"encoder.name = {config.encoder.name!r} is supposed"
      print(f"note: {supposed}; --config.init_from=RUN takes the encoder of a run", file=sys.stderr)
  sizes = plans.sizes_of(config, create.data_here(config) if reads_data else None)
  configs.check_against_encoder(config, getattr(sizes.encoder, "max_positions", 0))
  config, chosen = create.fitted(config, sizes.num_points, sizes.num_labels)
  if chosen:
    print(chosen, file=sys.stderr)
  configs.check_against_data(config, sizes.num_points or LARGEST, sizes.num_labels)
  made = plans.plan(config, sizes)
  # Does not call `show`, which asks JAX for a device.
  print(table(made), file=sys.stdout if made.total <= made.limit else sys.stderr)
  plans.check(made)


def train(config: ml_collections.ConfigDict, workdir: str | pathlib.Path = "") -> "Model":
  """Trains and tests as `--mode=train` does, from Python.

  If it is interrupted, as by a notebook's stop button, it saves its state; the same call goes on.

  Args:
    config: as `experiments/*.py` make it, or `xmc_jax.default_config()` with changes.
    workdir: the run's folder; '' is runs/<config.name>.

  Returns:
    The trained `Model`.

  Raises:
    UserError: a setting, the data or the machine is at fault; the message names which, in one line.
    KeyboardInterrupt, SystemExit: at Ctrl-C, and at SIGTERM unless the program has its own handler.

  Example:
    >>> config = xmc_jax.default_config()
    >>> config.data.path, config.train.num_epochs = "mine.csv", 10
    >>> model = xmc_jax.train(config, "runs/mine")
  """
  from xmc_jax.runs.model import Model

  methods.check_config(config)
  config = ml_collections.ConfigDict({**config.to_dict(), "name": configs.name_after_data(config)})
  workdir = pathlib.Path(workdir or f"runs/{config.name}").expanduser()
  with runtime.started(distributed=False, deterministic=config.runtime.deterministic):
    train_and_test(config, workdir)
  return Model.load(workdir, warm=False)


def train_and_test(
  config: ml_collections.ConfigDict, workdir: pathlib.Path, owns_process: bool = False
) -> dict[str, float]:
  """Runs `--mode=train`: everything from raw files to the test table.

  Args:
    config: checked already.
    workdir: the run's folder.
    owns_process: whether a stop request may end this process.

  Returns:
    The test metrics, as fractions; none if no test row has a label.
  """
  with train_run(config, workdir, owns_process) as (trained, writer):
    run = trained.run
    if why := _untested(run):
      say(f"note: {why}, so there is no test table")
    means = {} if why else _test(trained, writer)[0]
    show(guide.next_commands(run))
    if runtime.is_main_process():
      (workdir / "report").mkdir(exist_ok=True)
      seconds = json.dumps(dict(writer.seconds), indent=2)
      atomic.write_text(workdir / "report" / "seconds.json", f"{seconds}\n")
    return means


def test(
  workdir: pathlib.Path,
  destination: str = "",
  scores: str = "",
  backend: str = "",
  checkpoint: str = "best",
  source: str = "",
  reading: Mapping[str, str] | None = None,
) -> dict[str, float]:
  """Runs `--mode=evaluate`: writes the test table of a run, from its folder alone.

  Args:
    workdir: the run's folder.
    destination: a file for the test rows' labels in words, as JSON lines; '' writes none.
    scores: 'hybrid', 'fused', one of the method's views, or a source; '' is the run's own.
    backend: what searches the labels; '' is the run's own.
    checkpoint: 'best', the parameters that were best on validation rows, or 'last', those of the last step.
    source: other labelled data to test on, in any layout; '' is the run's own test rows.
    reading: keys of `config.data` that read `source`; the others are the run's own.
  """
  path = pathlib.Path(source).expanduser()
  formats.refuse_missing(path, "--input")
  run, own = runs.reopen(workdir, backend=backend), methods.read_config(workdir / "config.json").eval
  label_frequency.log_scope(run, scores or own.scores)
  choices = ((scores, own.scores), (backend, own.backend), (checkpoint, "best"))
  suffix = "".join(f"_{given}" for given, usual in choices if given not in ("", usual))
  writes = bool(destination) and runtime.is_main_process()
  if writes:
    atomic.check_output(destination)  # before the long work
  with contextlib.ExitStack() as stack:
    if source:
      suffix += f"_on_{path.name.partition('.')[0]}"
      folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
      run = run.with_test_rows(path, folder, reading)
    if why := _untested(run):
      raise UserError(f"{workdir}: {why}, so there is no test table; --input=FILE names other labelled rows")
    trained = stack.enter_context(to_test(run, checkpoint))
    means, ranked = _test(trained, MetricWriter(workdir), scores, suffix)
  if writes:
    from xmc_jax.runs.predict import write_test

    with atomic.open_output(destination) as out:
      write_test(run, ranked, out)
    show(f"labels in words: {destination}")
  return means


def predict(
  workdir: pathlib.Path,
  source: str,
  destination: str,
  k: int,
  reading: Mapping[str, str] | None = None,
  scores: str = "",
  backend: str = "",
  explain: bool = False,
  documents: bool = False,
  threshold: float = -math.inf,
  add_labels: str = "",
) -> None:
  """Runs `--mode=predict`: reads texts and writes only JSON lines; at a terminal it shows a prompt."""
  from xmc_jax.cli import interactive
  from xmc_jax.runs.model import Model
  from xmc_jax.runs.predict import predict_command

  opened: dict[str, Any] = {"scores": scores, "backend": backend, "add_labels": add_labels}
  if not (source or destination) and sys.stdin.isatty() and sys.stdout.isatty():
    return interactive.show_prompt(Model.load(workdir, warm=False, **opened), k, explain, threshold)
  how: dict[str, Any] = {"explain": explain, "whole": documents, "threshold": threshold, "reading": reading}
  predict_command(workdir, source, destination, k, **opened, **how)


def export(workdir: pathlib.Path, destination: str = "", added: str = "", scores: str = "") -> None:
  """Runs `--mode=export`: exports a run for other tools, or adds new labels to an exported folder.

  Args:
    workdir: the run's folder.
    destination: the exported folder; '' is `export` in the run's folder.
    added: a file of labels to add to the exported folder, as `Model.load` takes; '' exports the run.
    scores: what labels are ranked by; '' is the run's own.
  """
  from xmc_jax import export as exports
  from xmc_jax.runs import added_labels

  if not added:
    return exports.export(workdir, destination, scores)
  folder = pathlib.Path(destination).expanduser() if destination else workdir / "export"
  new = added_labels.read(pathlib.Path(added).expanduser(), data.read_manifest(workdir / "data"))
  exports.add_labels(folder, list(new.values()), list(new))


def compare(workdirs: Sequence[pathlib.Path], destination: str = "", scores: str = "") -> None:
  """Runs `--mode=compare`: shows finished runs side by side, as a table and a page.

  Args:
    workdirs: the runs' folders.
    destination: the page; '' puts it into the first run's report.
    scores: scores by which `--mode=evaluate` has ranked all of them; '' is each run's own.
  """
  report.compare(workdirs, destination, scores)


def _untested(run: runs.Run) -> str:
  """Returns why there can be no test table, in words; '' if there can."""
  if not len(test := run.dataset.test):
    return f"{run.dataset.name} has no test rows"
  return "" if test.unfiltered_positives.nnz else f"none of the {len(test):,} test rows has a label"


def _test(
  trained: Trained, writer: MetricWriter, scores: str = "", suffix: str = ""
) -> tuple[dict[str, float], evaluate.Ranking]:
  run, step = trained.run, trained.step
  test, chosen = run.dataset.test, scores or run.config.eval.scores
  methods.check_scores(chosen, run.config, run.method)
  with writer.stage("test"):
    queries = evaluate.embed_split(trained, test)
    ranked, why = evaluate.rank_test(trained, queries, chosen)
    means = {name: evaluate.score(run, test, found) for name, found in ranked.items()}
  _show_test(run, means, ranked[chosen], why, step)
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


def _show_test(
  run: runs.Run,
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
  off = evaluate.calibration(ranked, truth)["note"] if ranking.gives_probabilities(chosen) else ""
  show(guide.meanings(columns[chosen], columns) + (f"\nnote: {off}" if off else ""))
  if run.config.eval.num_examples:
    show("\nexamples: ✓ a right label, · a wrong one, ○ a right one that is not among the first three")
    show(evaluate.examples(run, test, ranked, run.config.eval.num_examples, why))
