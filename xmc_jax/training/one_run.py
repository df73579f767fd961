"""Trains one run, fits its ranking, and trains it once more on all rows (`train.refit`)."""

import contextlib
import pathlib
from collections.abc import Iterator

import ml_collections

from xmc_jax import config as configs
from xmc_jax.console import say
from xmc_jax.distributed import runtime
from xmc_jax.distributed.preemption import Stop
from xmc_jax.errors import UserError
from xmc_jax.runs import create, label_frequency, ranking
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.runs.run import Run
from xmc_jax.runs.trained import Trained
from xmc_jax.storage import locks, run_folder
from xmc_jax.storage.checkpoints import StepFolder
from xmc_jax.training import guide, loop


@contextlib.contextmanager
def train_run(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  owns_process: bool = False,
  tells_data: bool = True,
) -> Iterator[tuple[Trained, MetricWriter]]:
  """Trains a run, or continues it, and fits its ranking; in the block its folder is locked.

  Yields the trained run, and the writer of its metrics and stage times. A stop request may end a process that
  is ours (`owns_process`).
  """
  stop = Stop(config.checkpoint.grace_seconds, owns_process)
  with stop.listening(), contextlib.ExitStack() as stack:
    if runtime.is_main_process():
      stack.enter_context(locks.in_use(workdir))
    writer = stack.enter_context(contextlib.closing(MetricWriter(workdir)))
    run = create.create(config, workdir, writer)
    ranking.check_installed(run)
    if tells_data:
      say(guide.of_data(run.dataset))
    say(guide.of_training(run))
    label_frequency.log_scope(run, run.config.eval.scores)
    loop.train(run, writer, stop)
    trained = run.trained()
    with writer.stage("fuse"):
      ranking.fit_own_scores(trained)
    with writer.stage("hybrid"):
      ranking.fit_hybrid(trained)
    if run.config.train.refit:  # on all rows: nothing needs the validation rows any more
      trained.release()
      refit(run, writer, stop)
      trained = run.ranking_in(workdir).trained()  # whose labels are as frequent as in all rows
    yield trained, writer


def last_step(best_step: int, steps_per_epoch: int, steps_per_epoch_of_all: int) -> int:
  """Returns the step on all rows after as many epochs as `best_step` took on fewer rows; at least 1."""
  return max(1, round(best_step * steps_per_epoch_of_all / steps_per_epoch))


def refit(run: Run, writer: MetricWriter, stop: Stop | None = None) -> None:
  """Trains on all labelled rows from the start, in the folder `refit/` of a trained run.

  Uses the run's seed, settings and schedule; ends after as many epochs as were best by validation. Kills and
  signals act as in `loop.train`. Afterwards, `Run.trained` returns these parameters.
  """
  full_run, best_step = _on_all_rows(run), _best_step(run)
  steps = last_step(best_step, run.batches.steps_per_epoch, full_run.batches.steps_per_epoch)
  say(
    f"refit: trains again on all {len(full_run.batches.rows):,} points, for {steps:,} steps; on "
    f"{len(run.batches.rows):,} points, step {best_step:,} was best"
  )
  with contextlib.closing(MetricWriter(full_run.workdir)) as refit_writer:
    loop.train(full_run, refit_writer, stop, last_step=steps)
    _save_final(full_run.trained())
    writer.seconds["refit"] = sum(refit_writer.seconds.values())


def _on_all_rows(run: Run) -> Run:
  """Returns the run without rows held out, in a folder of its own."""
  settings = {
    "data.num_validation": 0,
    "train.refit": False,
    "train.early_stop_evals": 0,
    "train.minutes": 0.0,
  }
  folder = run.workdir / run_folder.REFIT
  if runtime.is_main_process():
    folder.mkdir(exist_ok=True)
  runtime.barrier(folder.name)
  return Run(configs.changed(run.config, settings), folder, run.dataset)


def _best_step(run: Run) -> int:
  """Returns the best step on validation rows; the newest step if the best parameters are gone."""
  for folder in (run.saved.best, run.saved.newest):
    if (step := folder.latest_valid()) is not None:
      return step
  raise UserError(f"{run.workdir}: every checkpoint is damaged; train anew with another --workdir")


def _save_final(trained: Trained) -> None:
  """Saves the parameters to use in `best/`; they are there only after the training has ended."""
  best = StepFolder(trained.run.workdir / run_folder.BEST, keep=1)
  if best.latest_valid() != trained.step:
    best.save(trained.step, trained.tree, {}, {"best": None})
