"""Trains from raw files to a tested model: `xmc_jax.train`, and what `--mode=train` runs."""

import contextlib
import json
import pathlib
from collections.abc import Iterator

import ml_collections

from xmc_jax import config as configs
from xmc_jax import methods
from xmc_jax.console import say, show
from xmc_jax.distributed import runtime
from xmc_jax.distributed.preemption import Stop
from xmc_jax.runs import create, label_frequency, ranking
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.runs.model import Model
from xmc_jax.runs.trained import Trained
from xmc_jax.storage import atomic, locks
from xmc_jax.training import guide, loop, refit, test_table


def train(config: ml_collections.ConfigDict, workdir: str | pathlib.Path = "") -> Model:
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
    return tested(trained, writer)


def tested(trained: Trained, writer: MetricWriter) -> dict[str, float]:
  """Tests a finished run, and writes the time that it took; returns the test metrics, or none."""
  run = trained.run
  if why := test_table.why_none(run.dataset):
    say(f"note: {why}, so there is no test table")
  means = {} if why else test_table.write(trained, writer)[0]
  show(guide.next_commands(run))
  if runtime.is_main_process():
    (run.workdir / "report").mkdir(exist_ok=True)
    seconds = json.dumps(dict(writer.seconds), indent=2)
    atomic.write_text(run.workdir / "report" / "seconds.json", f"{seconds}\n")
  return means


@contextlib.contextmanager
def train_run(
  config: ml_collections.ConfigDict, workdir: pathlib.Path, owns_process: bool = False
) -> Iterator[tuple[Trained, MetricWriter]]:
  """Trains a run, or continues it, and fits its ranking; in the block its folder is locked.

  Yields the trained run, and the writer of its metrics and stage times.

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
