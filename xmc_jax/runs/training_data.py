"""Splits training rows into those to train on and those held out, and counts labels on them."""

import functools

import ml_collections
import numpy as np
import scipy.sparse as sp

from xmc_jax import config as configs
from xmc_jax import data, metrics
from xmc_jax.errors import ConfigError


class TrainingData:
  """Splits a dataset's training rows into those to train on and those held out for validation.

  Attributes:
    dataset: the prepared data.
    train, validation: the labelled rows to train on, and those held out.
    num_labelled: number of the rows to train on that have a label to learn.

  Raises:
    ConfigError: there is nothing to learn from, or a setting does not fit the data.
  """

  def __init__(self, config: ml_collections.ConfigDict, dataset: data.Dataset):
    self.dataset, self._config = dataset, config
    if not dataset.train.num_labelled:
      raise ConfigError(f"{dataset.name}: no training row has a label, so there is nothing to learn from")
    configs.check_against_data(config, dataset.train.num_labelled, dataset.num_labels)
    self.train, self.validation = data.hold_out(
      dataset.train, config.data.num_validation, config.train.seed, dataset.num_validation
    )
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
