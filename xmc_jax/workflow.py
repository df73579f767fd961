"""What each --mode does, from a config or a run's folder to what the user sees."""

import contextlib
import json
import pathlib

import jax.numpy as jnp

from xmc_jax import data, evaluate, report, train
from xmc_jax import run as runs
from xmc_jax.contract import UserError
from xmc_jax.report import Report, say


def prepare(config, workdir: pathlib.Path) -> None:
  """`--mode=prepare`: reads, tokenises and checks the data; nothing is trained."""
  voice = Report(workdir)
  run = runs.create(config, workdir, voice)
  print(data.summary(run.dataset.manifest))
  say(voice.stage_summary())


def train_and_test(config, workdir: pathlib.Path) -> dict[str, float]:
  """`--mode=train`: everything from raw files to the test table.

  Returns:
    The test metrics, as fractions.
  """
  with contextlib.closing(Report(workdir)) as voice:
    run = runs.create(config, workdir, voice)
    say(data.summary(run.dataset.manifest))
    say(_plan(run))
    params, aux, step = train.train(run, voice)
    means, _ = _test(run, params, aux, step, voice)
    (workdir / "report" / "seconds.json").write_text(json.dumps(dict(voice.seconds), indent=2) + "\n")
    return means


def test(workdir: pathlib.Path, destination: str = "") -> dict[str, float]:
  """`--mode=evaluate`: the test table of a run, from its folder alone.

  Args:
    workdir: the run's folder.
    destination: a file for the test rows' labels in words, as JSON lines; '' for none.
  """
  run = runs.reopen(workdir)
  means, ranking = _test(run, *run.trained(), Report(workdir))
  if destination:
    write_lines(run, ranking, destination)
  return means


def predict(workdir: pathlib.Path, source: str, destination: str, k: int) -> None:
  """`--mode=predict`: texts in, JSON lines out; nothing else goes to standard output."""
  from xmc_jax.predict import predict_command

  predict_command(workdir, source, destination, k)


def _plan(run: runs.Run) -> str:
  batches, config = run.batches, run.config
  return (
    f"{run.method.batch.labels.replace('_', ' ')} labels, {len(batches.rows):,} training points, "
    f"{len(run.validation):,} held out for validation; {config.train.num_epochs} epochs of "
    f"{batches.steps_per_epoch} steps, {batches.real_token_fraction():.0%} of a batch's tokens are real"
  )


def _test(run: runs.Run, params, aux, step: int, voice: Report) -> tuple[dict[str, float], evaluate.Ranking]:
  with voice.stage("test"):
    labels = jnp.asarray(run.embed_labels(params, aux))
    ranking = evaluate.rank_split(run, params, aux, run.dataset.test, labels)
    means = evaluate.write_report(run, run.dataset.test, ranking, step)
  print(f"test metrics in percent, {len(run.dataset.test):,} points, parameters of step {step:,}")
  print(report.table(evaluate.shown(means)))
  if run.config.eval.num_examples:
    print("\nexamples (✓ is a true label)")
    print(evaluate.examples(run, run.dataset.test, ranking, run.config.eval.num_examples))
  print(f"\nwritten to {run.workdir}/: best/, report/metrics.json, predictions/test.npz, metrics.jsonl")
  print(
    f"try: echo 'a window manager for X11' | python -m xmc_jax.main --mode=predict --workdir={run.workdir}"
  )
  say(voice.stage_summary())
  return means, ranking


def write_lines(run: runs.Run, ranking: evaluate.Ranking, destination: str) -> None:
  """The test rows and their ranked labels in words, JSON lines as `--mode=predict` writes them."""
  from xmc_jax.predict import json_line

  names = run.dataset.labels.texts
  try:
    with open(destination, "w", encoding="utf-8") as out:
      for text, ids, scores in zip(run.dataset.test.texts, ranking.ids.tolist(), ranking.scores.tolist()):
        found = [(label, value, names[label]) for label, value in zip(ids, scores) if label >= 0]
        out.write(json_line(text, found))
  except OSError as error:
    raise UserError(f"{destination}: cannot be written ({error.strerror})") from None
