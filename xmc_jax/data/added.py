"""Copies of an opened data set with more labels, or with other data as its test rows."""

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import scipy.sparse as sp

from xmc_jax.data.arrays import Texts, utf8, well_formed
from xmc_jax.data.dataset import Dataset, Split, TextSet, Truth
from xmc_jax.data.formats.label_ids import Vocabulary
from xmc_jax.data.formats.source import DEFAULTS, excerpt
from xmc_jax.data.loading import load
from xmc_jax.data.prepared import options_for
from xmc_jax.data.tokens import Encoder
from xmc_jax.data.vocabulary.concepts import Concept
from xmc_jax.errors import DataError

_OF_LABELS = ("label_file", "label_text", "label_parent", "vocabulary", "language", "alternative_names")

Unknown = Literal["leave out", "refuse", "add"]


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
  longer.label_names = dataset.label_names.followed_by(new)
  longer.label_keys = dataset.label_keys.followed_by(new if keys is None else _in_memory(keys))
  longer.num_labels = len(longer.labels)
  longer.train, longer.test = (_widened(split, longer.num_labels) for split in (dataset.train, dataset.test))
  longer.truth = Truth(longer.train.truth, longer.test.truth)
  return longer


def _in_memory(texts: Sequence[str]) -> Texts:
  letters, lengths = utf8(well_formed(list(texts)))
  return Texts(letters, np.cumsum(lengths) - lengths, lengths)


def _widened(split: Split, num_labels: int) -> Split:
  truth, filtered = (
    sp.csr_matrix((matrix.data, matrix.indices, matrix.indptr), (matrix.shape[0], num_labels))
    for matrix in (split.truth, split.filter)
  )
  return Split(split.texts, split.tokens, truth, filtered, split.row_numbers)


def with_test_rows(
  dataset: Dataset,
  path: Path,
  max_length: int,
  folder: Path,
  given: Mapping[str, str] | None = None,
  *,
  unknown: Unknown = "leave out",
) -> tuple[Dataset, list[str]]:
  """Returns a copy of a data set with the rows of other data as its test rows, and notes on them.

  They are the other data's test rows or, without any, all rows. Labels are matched by key, else by text;
  where none matches, whole numbers are ids, if they were in the data set's own files.

  Args:
    dataset: prepared with a tokenizer.
    path: data in any layout; a table is read as the data set was.
    max_length: tokens kept of each text.
    folder: where they are prepared; must not be deleted while the data set is used.
    given: options that read the other data, instead of those of the data set.
    unknown: what becomes of labels that the data set lacks; those left out are counted in a note.

  Raises:
    DataError: bad input, no label is one of the data set, or one is not and that is refused.
  """
  options = {**options_for(dataset.manifest, path)._asdict(), "test_fraction": 0.0}
  beside = path if path.is_dir() else path.parent
  named = options["label_file"] or options["vocabulary"]
  if not (named and (beside / named).is_file()):
    options |= {key: DEFAULTS._asdict()[key] for key in _OF_LABELS}
  options |= given or {}
  tokenizer = dataset.tokenizer()
  other = load(path, tokenizer=tokenizer, max_length=max_length, cache_dir=folder, **options)
  rows = other.test if len(other.test) else other.train
  columns = _columns(dataset, other)
  if unknown == "add":
    new = np.flatnonzero((columns < 0) & (np.bincount(rows.truth.indices, minlength=len(columns)) > 0))
    columns[new] = dataset.num_labels + np.arange(len(new))
    texts, keys = ([table[int(label)] for label in new] for table in (other.labels.texts, other.label_keys))
    dataset = with_labels(dataset, texts, max_length, keys)
  lacking = _unknown(path, dataset, other, rows.truth, columns, unknown == "refuse")
  known = np.flatnonzero(columns >= 0)
  shape = other.num_labels, dataset.num_labels
  mapping = sp.csr_matrix((np.ones(len(known), np.float32), (known, columns[known])), shape)
  truth, filtered = ((matrix.astype(np.float32) @ mapping).tocsr() for matrix in (rows.truth, rows.filter))
  truth.sort_indices()
  filtered.sort_indices()
  tested = copy.copy(dataset)
  tested.test = Split(rows.texts, rows.tokens, truth, filtered.astype(bool), rows.row_numbers)
  tested.truth = Truth(dataset.truth.train, truth)
  return tested, [*other.manifest["notices"], *lacking, *_learnt(dataset, rows)]


def _learnt(dataset: Dataset, rows: Split) -> list[str]:
  trained = set(dataset.train.texts)
  count = sum(bool(text) and text in trained for text in rows.texts)
  return [f"{count:,} of {len(rows):,} texts are among those that the run learnt from"] if count else []


def vocabulary_of(dataset: Dataset) -> Vocabulary:
  """Returns the labels of a data set, by their names, keys and whatever else its vocabulary calls them."""
  called = [Concept(**json.loads(concept)).cell_names() for concept in dataset.label_concepts or ()]
  return Vocabulary(list(dataset.label_names), list(dataset.label_keys), cell_names=called)


def _columns(dataset: Dataset, other: Dataset) -> np.ndarray:
  """Returns `[L_other]` int64, the id in `dataset` of each label of `other`; -1 if it has none."""
  known = vocabulary_of(dataset)
  pairs = [(key.strip(), text.strip()) for key, text in zip(other.label_keys, other.label_names)]
  ids = [[*known.ids_of(pair), -1][0] for pair in pairs]
  numbers = dataset.manifest["read_by"].get("numbers", "rows")
  if numbers == "rows" and max(ids) < 0 and all(key.isdecimal() for key, _ in pairs):
    ids = [int(key) if len(key) < 10 and int(key) < dataset.num_labels else -1 for key, _ in pairs]
  return np.array(ids, np.int64)


def _unknown(
  path: Path, dataset: Dataset, other: Dataset, truth: sp.csr_matrix, columns: np.ndarray, refuse: bool
) -> list[str]:
  """Returns a note on labels that the data set lacks, if there are any.

  Refuses them, if `refuse` is set, and else rows that have no others.
  """
  counts = np.bincount(truth.indices, minlength=other.num_labels)
  unknown = np.flatnonzero((counts > 0) & (columns < 0))
  if not len(unknown):
    return []
  shown = ", ".join(excerpt(other.label_keys[label]) for label in unknown[:3].tolist())
  if not counts[columns >= 0].any():
    known = ", ".join(excerpt(key) for key in dataset.label_keys[np.arange(min(3, dataset.num_labels))])
    raise DataError(
      f"{path}: expected labels of this run, such as {known}, found only others, such as {shown}"
    )
  shown += ", ..." * (len(unknown) > 3)
  pairs = f"{counts[unknown].sum():,} of {counts.sum():,} label pairs"
  such = f"{len(unknown):,} ({shown}), in {pairs}"
  if refuse:
    raise DataError(f"{path}: labels that the run lacks: {such}")
  return [f"labels that the run lacks are left out: {such}"]
