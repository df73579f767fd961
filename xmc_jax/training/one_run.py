"""Trains one run, and fits its ranking."""

import contextlib
import pathlib
from collections.abc import Iterator

import ml_collections

from xmc_jax.console import say
from xmc_jax.distributed import runtime
from xmc_jax.distributed.preemption import Stop
from xmc_jax.runs import create, label_frequency, ranking
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.runs.trained import Trained
from xmc_jax.storage import locks
from xmc_jax.training import guide, loop, refit


@contextlib.contextmanager
def train_run(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  owns_process: bool = False,
  tells_data: bool = True,
) -> Iterator[tuple[Trained, MetricWriter]]:
  """Trains a run, or continues it, and fits its ranking; in the block its folder is locked.

  Yields the trained run, and the writer of its metrics and stage times.

  Args:
    config: checked already.
    workdir: the run's folder.
    owns_process: whether a stop request may end this process.
    tells_data: whether to say what the data are.
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
      refit.train(run, writer, stop)
      trained = run.ranking_in(workdir).trained()  # whose labels are as frequent as in all rows
    yield trained, writer
