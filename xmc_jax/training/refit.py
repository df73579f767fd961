"""Training once more on all rows, those held out too, for as many epochs as were best (`train.refit`)."""

import contextlib

import ml_collections

from xmc_jax.console import say
from xmc_jax.distributed import runtime
from xmc_jax.distributed.preemption import Stop
from xmc_jax.errors import UserError
from xmc_jax.runs.metric_writer import Report
from xmc_jax.runs.run import Run
from xmc_jax.storage import run_folder
from xmc_jax.training import loop
from xmc_jax.types import PyTree


def last_step(best_step: int, steps_per_epoch: int, steps_per_epoch_of_all: int) -> int:
  """The step on all rows after as many epochs as `best_step` is on fewer; 1 or more.

  Args:
    best_step: of the first training.
    steps_per_epoch: of it.
    steps_per_epoch_of_all: of the second.
  """
  return max(1, round(best_step * steps_per_epoch_of_all / steps_per_epoch))


def train(run: Run, report: Report, stop: Stop | None = None) -> tuple[PyTree, PyTree, int]:
  """Trains on all labelled rows from the start, in the folder `refit/` of a run that has been trained.

  Seed, settings and schedule are the run's own; it ends where validation was best. What `loop.train` says of
  kills and signals holds here, too. When it is done, `Run.trained` gives what it made.

  Args:
    run: `loop.train` has ended with it, and it holds out rows.
    report: its voice.
    stop: as in `loop.train`.

  Returns:
    `(params, extra_state, step)`: the last.
  """
  again, best_step = _on_all_rows(run), _best_step(run)
  steps = last_step(best_step, run.batches.steps_per_epoch, again.batches.steps_per_epoch)
  say(
    f"refit: once more, on all {len(again.batches.rows):,} points, for {steps:,} steps; of "
    f"{len(run.batches.rows):,} points step {best_step:,} was best"
  )
  with contextlib.closing(Report(again.workdir)) as voice:
    params, extra_state, step = loop.train(again, voice, stop, last_step=steps)
    _keep(again, params, extra_state, step)
    report.seconds["refit"] = sum(voice.seconds.values())
  return params, extra_state, step


def _on_all_rows(run: Run) -> Run:
  """The run that holds out no rows, in a folder of its own."""
  config = ml_collections.ConfigDict(run.config.to_dict())
  config.data.num_validation, config.train.refit, config.train.early_stop_evals = 0, False, 0
  folder = run.workdir / run_folder.REFIT
  if runtime.is_main_process():
    folder.mkdir(exist_ok=True)
  runtime.barrier(folder.name)
  return Run(config, folder, run.dataset)


def _best_step(run: Run) -> int:
  """The best step on validation rows; the newest where what was best is gone."""
  for opened in (run.saved.best, run.saved.checkpoints):
    with contextlib.closing(opened(read_only=True)) as checkpoints:
      step = checkpoints.latest_valid()
      if step is not None:
        return step
  raise UserError(f"{run.workdir}: no checkpoint is left that is not damaged")


def _keep(run: Run, params: PyTree, extra_state: PyTree, step: int) -> None:
  """The parameters to use, in `best/`: there only when the training has ended."""
  with contextlib.closing(run.saved.best()) as best:
    if best.latest_valid() != step:
      best.save(step, {"params": params, "extra_state": extra_state}, {}, {"best": None})
