"""Trains from raw files to a tested model: `xmc_jax.train`, and what `--mode=train` runs."""

import pathlib

import ml_collections

from xmc_jax import config as configs
from xmc_jax import methods
from xmc_jax.distributed import runtime
from xmc_jax.runs.model import Model
from xmc_jax.training import auto, test_table
from xmc_jax.training.one_run import train_run


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
  """Runs `--mode=train`, from raw files to the test table, of a config that was checked already.

  A stop request may end a process that is ours (`owns_process`).

  Returns:
    The test metrics, as fractions; none if no test row has a label.
  """
  if config.auto.minutes:
    return auto.train_and_test(config, workdir, owns_process)
  with train_run(config, workdir, owns_process) as (trained, writer):
    return test_table.test(trained, writer)
