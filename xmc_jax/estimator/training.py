"""Trains an estimator's run in a folder of the user, or in a temporary one."""

import pathlib

import ml_collections
import scipy.sparse as sp

from xmc_jax.console import say
from xmc_jax.data import in_memory
from xmc_jax.data.label_sets import LabelSpace
from xmc_jax.distributed import runtime
from xmc_jax.estimator import files
from xmc_jax.estimator.fitted import Fitted, data_of
from xmc_jax.runs import create
from xmc_jax.storage import locks, run_folder
from xmc_jax.training import auto
from xmc_jax.training.one_run import train_run


def train(
  config: ml_collections.ConfigDict,
  texts: list[str],
  space: LabelSpace,
  truth: sp.csr_matrix,
  workdir: pathlib.Path | None,
) -> Fitted:
  """Trains a run, or continues the one in `workdir`; there is no test split.

  Args:
    config: all but the places of data.
    texts: n training texts.
    space: the labels.
    truth: CSR `[n, L]`, the labels of each text.
    workdir: the run's folder; None keeps no file beyond the result's life, and no compiled program on disk.
  """
  temporary = files.TemporaryFolder()
  try:
    home = workdir or temporary.path
    run = workdir or home / "run"
    if not workdir:
      config.checkpoint.every_epochs = 0.0  # nothing can continue from a folder that is deleted
    config.data.path, config.data.cache_dir = str(home / "texts"), str(temporary.path / "cache")
    with locks.in_use(home, ".fit.lock", "fits here; wait for it, or give another workdir"):
      given = space.texts, (texts, truth), (texts[:0], truth[:0])
      if workdir and run_folder.has_checkpoints(workdir) and (workdir / "data").is_dir():
        _refuse_other_data(workdir, in_memory.checksums(*given))  # before its texts are replaced
      in_memory.write_encoded(home / "texts", *given)
      with runtime.started(False, config.runtime.deterministic, keeps_programs=workdir is not None):
        if config.auto.minutes:
          auto.train_and_test(config, run)
        else:
          with train_run(config, run) as (_, writer):
            say(writer.stage_summary())
  except BaseException:
    temporary.delete()
    raise
  if workdir:
    temporary.delete()
    return Fitted(run, space)
  files.keep_run(home, run)
  return Fitted(run, space, temporary)


def _refuse_other_data(workdir: pathlib.Path, given: dict[str, str]) -> None:
  """Raises ConfigError if the run in a folder was trained on other files than these, by their checksums."""
  known = data_of(workdir)
  if given != known:
    names = (name for name in given.keys() | known.keys() if given.get(name) != known.get(name))
    raise create.other_data(workdir, min(names))
