"""Trains an estimator's run, and keeps it with its labels and its model."""

import pathlib
from collections.abc import Sequence
from typing import Any

import ml_collections
import numpy as np
import scipy.sparse as sp

from xmc_jax import data
from xmc_jax.console import say
from xmc_jax.data import Dataset, in_memory
from xmc_jax.data.label_sets import LabelSpace
from xmc_jax.distributed import runtime
from xmc_jax.errors import DataError, UserError
from xmc_jax.estimator import files
from xmc_jax.runs import create, label_functions
from xmc_jax.runs import run as runs
from xmc_jax.runs.model import Model
from xmc_jax.runs.trained import Trained
from xmc_jax.storage import locks, run_folder
from xmc_jax.training import auto
from xmc_jax.training.one_run import train_run


def _data_of(run: pathlib.Path) -> dict[str, str]:
  """Returns the checksums of the files that a run's data were prepared from, by their names."""
  return {source["name"]: source["sha256"] for source in data.read_manifest(run / "data")["sources"]}


class Fitted:
  """Holds a trained run. A pickle has its files, unless they are in a folder that the user has chosen.

  Args:
    run: the run's folder.
    space: its labels.
    temporary: the temporary folder that the run is in; None if the user has chosen the folder.

  Attributes:
    space: as given, then the labels that were added, then those that were learnt.
    num_trained: labels of the training.
  """

  def __init__(self, run: pathlib.Path, space: LabelSpace, temporary: files.TemporaryFolder | None = None):
    self._run, self._temporary = run, temporary
    self.num_trained, self._num_learnt = len(space.texts), 0
    self._data = _data_of(run)
    self._models: dict[str, Model] = {}
    self.space = space

  def model(self, scores: str) -> Model:
    """Opens the run to rank by these scores.

    Raises:
      UserError: the folder is gone, damaged or replaced, or the method does not rank by these scores.
    """
    if scores not in self._models:
      trained = self._trained()
      added = self.space.texts[self.num_trained : len(self.space.texts) - self._num_learnt]
      self._models = {scores: Model(trained.with_labels(added) if added else trained, scores)}
    self.follow(self._models[scores].dataset)
    return self._models[scores]

  def follow(self, dataset: Dataset) -> None:
    """Lets `space` end with the labels that the model has learnt."""
    others = len(self.space.texts) - self._num_learnt
    learnt = [dataset.label_keys[label] for label in range(others, dataset.num_labels)]
    if learnt != self.space.texts[others:]:
      self.space, self._num_learnt = self.space.first(others).extended(learnt), len(learnt)

  def add_labels(self, texts: Sequence[str]) -> np.ndarray:
    """Adds labels that are not there yet; see `XMCClassifier.add_labels`."""
    for row, text in enumerate(texts):
      if not text.strip():
        raise DataError(f"texts[{row}]: expected the text of a label, found {text!r:.60}")
    column_of: dict[str, int] = {}
    for column, text in enumerate(self.space.texts):
      column_of.setdefault(text, column)  # data sets may have labels with one text
    new = [text for text in dict.fromkeys(texts) if text not in column_of]
    if new:
      if self._num_learnt:
        raise UserError("labels were learnt, whose columns are the last; add labels by their texts before")
      label_functions.check_by_text(
        self._trained(),
        "fit with a method other than 'ova' and 'unidec', whose labels can be texts alone",
      )
      column_of |= {text: len(self.space.texts) + number for number, text in enumerate(new)}
      self.space, self._models = self.space.extended(new), {}
    return np.array([column_of[text] for text in texts], np.int32)

  def _trained(self) -> Trained:
    """Opens the run; refuses one that was trained on other data, as columns would get wrong names."""
    run = runs.reopen(self._run)
    if _data_of(self._run) != self._data:
      raise UserError(
        f"{self._run} has been replaced by a run on other data since this estimator was fitted; fit it "
        "again, in another workdir"
      )
    return run.trained()

  def __getstate__(self) -> dict[str, Any]:
    state = {**self.__dict__, "_models": {}, "_temporary": None}
    if self._temporary:
      state["_run"] = files.packed(self._run)
    return state

  def __setstate__(self, state: dict[str, Any]) -> None:
    self.__dict__.update(state)
    if isinstance(self._run, dict):
      temporary = files.TemporaryFolder()
      files.unpack(self._run, temporary.path / "run")
      self._run, self._temporary = temporary.path / "run", temporary


def train(
  config: ml_collections.ConfigDict,
  texts: list[str],
  space: LabelSpace,
  truth: sp.csr_matrix,
  workdir: pathlib.Path | None,
) -> Fitted:
  """Trains a run on n texts, or continues the one in `workdir`; there is no test split.

  Args:
    config: all but the places of data.
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
      is_begun = run_folder.has_checkpoints(run) and (run / "data").is_dir()
      if is_begun and (differs := create.differing(in_memory.checksums(*given), _data_of(run))):
        raise create.other_data(run, differs)  # before its texts are replaced
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
