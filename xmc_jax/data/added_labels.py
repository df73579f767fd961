"""Adds labels to an opened data set, in memory."""

import copy
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from xmc_jax.data.dataset import Dataset, Split, TextSet, Truth
from xmc_jax.data.texts import Texts, utf8, well_formed
from xmc_jax.data.tokens import Encoder


def with_labels(
  dataset: Dataset, texts: Sequence[str], max_length: int, keys: Sequence[str] | None = None
) -> Dataset:
  """Returns a data set with more labels after its own, which no point has.

  Args:
    dataset: prepared with a tokenizer.
    texts: n label texts.
    max_length: tokens kept of each text.
    keys: n keys of the labels; None if they are the texts.
  """
  new = _in_memory(texts)
  tokens = Encoder(dataset.tokenizer(), max_length).table(texts)
  longer = copy.copy(dataset)
  longer.labels = TextSet(dataset.labels.texts.followed_by(new), dataset.labels.tokens.followed_by(tokens))
  longer.label_keys = dataset.label_keys.followed_by(new if keys is None else _in_memory(keys))
  longer.num_labels = len(longer.labels)
  longer.train, longer.test = (_widened(split, longer.num_labels) for split in (dataset.train, dataset.test))
  longer.truth = Truth(longer.train.truth, longer.test.truth)
  return longer


def _in_memory(texts: Sequence[str]) -> Texts:
  letters, lengths = utf8(well_formed(list(texts)))
  return Texts.of_offsets(letters, np.concatenate([[0], np.cumsum(lengths)]))


def _widened(split: Split, num_labels: int) -> Split:
  truth, filtered = (
    sp.csr_matrix((matrix.data, matrix.indices, matrix.indptr), (matrix.shape[0], num_labels))
    for matrix in (split.truth, split.filter)
  )
  return Split(split.texts, split.tokens, truth, filtered, split.row_numbers)
