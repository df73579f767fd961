"""What each --mode does, from a config or a run's folder to what the user sees."""

import contextlib
import json
import pathlib

import jax.numpy as jnp

from xmc_jax import data, evaluate, report, train
from xmc_jax import run as runs
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
    return _test(run, params, aux, step, voice)


def test(workdir: pathlib.Path) -> dict[str, float]:
  """`--mode=evaluate`: the test table of a run, from its folder alone."""
  run = runs.reopen(workdir)
  return _test(run, *run.trained(), Report(workdir))


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


def _test(run: runs.Run, params, aux, step: int, voice: Report) -> dict[str, float]:
  with voice.stage("test"):
    labels = jnp.asarray(run.embed_labels(params, aux))
    ranking = evaluate.rank_split(run, params, aux, run.dataset.test, labels)
    means = evaluate.write_report(run, run.dataset.test, ranking, step)
  print(f"test metrics in percent, {len(run.dataset.test):,} points, parameters of step {step:,}")
  print(report.table(means))
  if run.config.eval.num_examples:
    print("\nexamples (✓ is a true label)")
    print(evaluate.examples(run, run.dataset.test, ranking, run.config.eval.num_examples))
  print(f"\nwritten to {run.workdir}/: best/, report/metrics.json, predictions/test.npz, metrics.jsonl")
  print(
    f"try: echo 'a window manager for X11' | python -m xmc_jax.main --mode=predict --workdir={run.workdir}"
  )
  (run.workdir / "report" / "seconds.json").write_text(json.dumps(dict(voice.seconds), indent=2) + "\n")
  say(voice.stage_summary())
  return means
