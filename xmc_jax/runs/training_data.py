"""Splits training rows into those to train on and those held out, and counts labels on them."""

import functools
import pathlib

import ml_collections
import numpy as np
import scipy.sparse as sp

from xmc_jax import config as configs
from xmc_jax import data, methods, metrics
from xmc_jax.errors import ConfigError
from xmc_jax.storage import npy, run_folder

_ROWS = "train.texts.npy", "train.truth.columns.npy"  # names of prepared files


class TrainingData:
  """Splits a dataset's training rows into those to train on and those held out for validation.

  Args:
    config: the run's.
    dataset: the prepared data.
    workdir: the run's folder; may hold what `write_known` writes.

  Attributes:
    dataset: the prepared data.
    train, validation: the labelled rows to train on, and those held out.
    num_labelled: number of the rows to train on that have a label to learn.
    num_known: number of the rows held out that the run `config.init_from` was trained on.

  Raises:
    ConfigError: there is nothing to learn from, or a setting does not fit the data.
  """

  def __init__(self, config: ml_collections.ConfigDict, dataset: data.Dataset, workdir: pathlib.Path):
    self.dataset, self._config = dataset, config
    if not dataset.train.num_labelled:
      raise ConfigError(f"{dataset.name}: no training row has a label, so there is nothing to learn from")
    configs.check_against_data(config, dataset.train.num_labelled, dataset.num_labels)
    known = _known(workdir, len(dataset.train))
    self.train, self.validation = data.hold_out(
      dataset.train, config.data.num_validation, config.train.seed, dataset.num_validation, known
    )
    self.num_known = 0 if known is None else int(known[self.validation.row_numbers].sum())
    self.num_labelled = int(np.count_nonzero(np.diff(self.train.unfiltered_positives.indptr)))
    if not self.num_labelled:
      raise ConfigError(
        f"{dataset.name}: every label pair of the training rows is filtered, so there is nothing to learn"
      )

  @functools.cached_property
  def inverse_propensity(self) -> np.ndarray:
    """Returns `[L]`, 1 / p_l, counted on all training rows."""
    settings = self._config.eval
    return metrics.inverse_propensity(self.dataset.train.truth, settings.propensity_a, settings.propensity_b)

  def votes(self, rows: np.ndarray) -> sp.csr_matrix:
    """Returns CSR `[n, L]` float32, the votes of these rows of `dataset.train` for their labels in a memory.

    A vote is 1, or with `train.relevance_weights` the relevance over the largest one.
    """
    every = self.dataset.train.unfiltered_positives
    votes = every[rows]
    by_relevance = self._config.train.relevance_weights
    votes.data = votes.data / every.data.max() if by_relevance else np.ones_like(votes.data)
    return votes


def write_known(config: ml_collections.ConfigDict, dataset: data.Dataset, workdir: pathlib.Path) -> None:
  """Writes `KNOWN`: `[N]` bool, which training rows are held out last.

  These have the text of a labelled row that the run `config.init_from` was trained on, or knew so itself. If
  it has the same rows and knew none, both runs hold out the same ones, and there is no file.
  """
  source = pathlib.Path(config.init_from)
  theirs = data.load_prepared(source / "data")
  known = _known(source, len(theirs.train))
  files, our_files = theirs.manifest["files"], dataset.manifest["files"]
  if any(files[name] != our_files[name] for name in _ROWS):
    other = methods.read_config(source / "config.json")
    trained = theirs.train if other.train.refit else TrainingData(other, theirs, source).train
    texts = set(trained.texts[np.flatnonzero(np.diff(trained.truth.indptr))])
    texts |= set() if known is None else set(theirs.train.texts[np.flatnonzero(known)])
    known = np.fromiter((text in texts for text in dataset.train.texts), bool, len(dataset.train))
  (workdir / run_folder.KNOWN).unlink(missing_ok=True)  # of a stopped command, before the data changed
  if known is not None:
    npy.write(workdir / run_folder.KNOWN, known)


def _known(workdir: pathlib.Path, num_rows: int) -> np.ndarray | None:
  path = workdir / run_folder.KNOWN
  remedy = "copy it from another copy of the folder, or begin another run"
  return npy.read(path, num_rows, remedy) if path.exists() else None
