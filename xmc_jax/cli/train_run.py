"""Trains a run, from raw files to a model that ranks; tests nothing."""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import ml_collections

from xmc_jax.cli import guide
from xmc_jax.console import say
from xmc_jax.distributed import runtime
from xmc_jax.distributed.preemption import Stop
from xmc_jax.runs import create, fused, label_frequency, ranking
from xmc_jax.runs import run as runs
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.storage import locks
from xmc_jax.training import loop, refit
from xmc_jax.types import PyTree


class TrainedRun(NamedTuple):
  """Holds a trained run.

  Attributes:
    run: the run.
    writer: writes its metrics and stage times.
    params, extra_state: as trained.
    step: the training step of the parameters.
  """

  run: runs.Run
  writer: MetricWriter
  params: PyTree
  extra_state: PyTree
  step: int


@contextlib.contextmanager
def train_run(
  config: ml_collections.ConfigDict, workdir: pathlib.Path, owns_process: bool = False
) -> Iterator[TrainedRun]:
  """Trains a run, or continues it, and fits its ranking; in the block its folder is locked.

  Args:
    config: checked already.
    workdir: the run's folder.
    owns_process: whether a stop request may end this process.
  """
  stop = Stop(config.checkpoint.grace_seconds, owns_process)
  with stop.listening(), contextlib.ExitStack() as stack:
    if runtime.is_main_process():
      stack.enter_context(locks.in_use(workdir))
    writer = stack.enter_context(contextlib.closing(MetricWriter(workdir)))
    run = create.create(config, workdir, writer)
    ranking.check_installed(run)
    say(guide.data_and_plan(run))
    label_frequency.log_scope(run, run.config.eval.scores)
    loop.train(run, writer, stop)
    params, extra_state, step = run.trained()
    with writer.stage("fuse"):
      fused.fit_fusion(run, params, extra_state)
      label_frequency.fit(run, params, extra_state)
    with writer.stage("hybrid"):
      ranking.fit_hybrid(run, params, extra_state)
    if run.config.train.refit:  # on all rows: nothing needs the validation rows any more
      refit.train(run, writer, stop)
      run = run.ranking_in(workdir)  # whose labels are as frequent as in all rows
      params, extra_state, step = run.trained()
    yield TrainedRun(run, writer, params, extra_state, step)
