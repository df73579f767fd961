"""Tables with a column of texts and a column of labels, with or without a test file."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, islice, product
from pathlib import Path

import numpy as np

from xmc_jax.data.formats import columns, label_tables
from xmc_jax.data.formats.columns import TableColumns
from xmc_jax.data.formats.json_records import joined_text
from xmc_jax.data.formats.label_cells import CellSurvey, cell_of, columns_of_bits
from xmc_jax.data.formats.label_classes import LabelClasses
from xmc_jax.data.formats.label_ids import Vocabulary
from xmc_jax.data.formats.repeated_texts import TextGroups, hashes_of
from xmc_jax.data.formats.source import KeyedTexts, Options, Pairs, Place, Rows, excerpt, some_of
from xmc_jax.data.formats.split_files import SplitFiles, find_splits, one_file
from xmc_jax.data.formats.table_files import (
  SUFFIXES,
  column_names,
  records,
  refuse_missing,
  resolved,
  suffix,
)
from xmc_jax.errors import ConfigError, DataError

LOOKS_FOR = (
  "train.* and test.*, train-00000-of-00002.* and so on, or one file, in .jsonl, .json, .csv, .tsv, "
  ".parquet, .xlsx or fastText's .txt"
)
POINT_SUFFIXES = (*SUFFIXES, ".txt")
_HUB_FOLDER = "data"  # where repositories of the hub have their tables


def recognise(path: Path, options: Options, notices: list[str]) -> dict | None:
  """Returns the `Source` fields of this layout, or None if there is no such table.

  Raises:
    DataError: a folder has several tables, and none of them is called train.
  """
  labels = label_tables.find_label_file(path, options)
  if path.is_file():
    return source_fields(one_file(path), None, labels, options, notices)
  train, test = find_splits(path, POINT_SUFFIXES, notices)
  if train is None:
    kinds = {*SUFFIXES} - {".json"}  # most of which hold settings
    tables = [file for file in sorted(path.iterdir()) if suffix(file) in kinds and file != labels]
    if not tables and (path / _HUB_FOLDER).is_dir():
      train, test = find_splits(path / _HUB_FOLDER, SUFFIXES, notices)
    if len(tables) > 1:
      names = some_of([file.name for file in tables])
      several = f"several tables, {names}, none of them train.*; take one with --config.data.path=FILE"
      raise DataError(f"{path}: {several}")
    if tables:
      train = one_file(tables[0])
  if train is None:
    return None
  return source_fields(train, test, labels, options, notices)


def source_fields(
  train: SplitFiles, test: SplitFiles | None, labels: Path | None, options: Options, notices: list[str]
) -> dict:
  """Returns the `Source` fields of these tables; without a test table, a share of train is held out."""
  if labels is None:
    label_tables.refuse_settings_without_columns(train.files[0], options)
  reader = _Tables(train, test, labels, options, notices)
  return {
    "files": (*train.files, *(test.files if test else ()), *((labels,) if labels else ())),
    "labels_file": labels or train.files[0],
    "held_out": train.held_out,
    "labels": reader.labels,
    "splits": {"train": partial(reader.rows, False), "test": partial(reader.rows, True)},
    "unordered": reader.unordered(),
    "read_by": reader.read_by,
  }


class _Tables:
  """Reads one or two tables: one pass tells the format of labels, one numbers them, one reads points.

  If texts repeat, one more collects their labels. Holds the distinct labels (or a whole label file), eighteen
  bytes per row and the labels of repeated texts in memory between passes.
  """

  def __init__(
    self, train: SplitFiles, test: SplitFiles | None, labels: Path | None, options: Options, notices: list
  ):
    self._train, self._test, self._label_file = train, test, labels
    self._options, self._notices = options, notices
    if not 0 <= options.test_fraction < 1:
      wrong = f"--config.data.test_fraction={options.test_fraction}"
      raise ConfigError(f"{wrong}: expected a share in [0, 1), such as 0.2")
    self.read_by: dict[str, str] = {}
    self._is_test = np.zeros(0, bool)
    self._num_train = 0
    self._keys: list[str] = []
    self._columns: dict[SplitFiles, TableColumns] = {}
    self._groups: dict[SplitFiles, TextGroups] = {}
    self._later_labels: dict[SplitFiles, dict[int, list[int]]] = defaultdict(dict)

  def unordered(self) -> dict[str, str]:
    """Returns why the rows of a graph file cannot be matched to points or labels, by side of the graph."""
    reasons = {}
    if not self._test and self._options.test_fraction:
      reasons["query_edges"] = (
        "a share of the points is held out for testing: put test.csv beside, or set "
        "--config.data.test_fraction=0"
      )
    if not self._label_file:
      reasons["label_edges"] = (
        "labels have no order but that of the points: put labels.txt beside, a label a line"
      )
    return reasons

  def labels(self) -> Iterator[KeyedTexts]:
    """Numbers the labels and yields them; without keys if they are called by their texts."""
    for split in self._splits():
      self._columns[split] = self._find_columns(split)
    survey = self._survey_cells()
    self._format = survey.format()
    self._classes = LabelClasses((split, self._columns[split].labels[0]) for split in self._splits())
    self._vocabulary = self._known_labels(
      [{*self._classes.names}] if self._classes.names else survey.samples()
    )
    if self._label_file:
      self._format = survey.format(self._vocabulary)
    self._number_labels()
    named = resolved(self._train.files[0], self._columns[self._train], self._options)
    self.read_by |= {**named, "label_separator": survey.separator(self._format)}
    has_rows = self._vocabulary.has_rows or (bool(self._classes.names) and not self._label_file)
    self.read_by["numbers"] = "rows" if has_rows else ""
    self._notices += self._columns_taken()
    texts = [] if self._label_file or self._classes.names else self._vocabulary.texts
    self._notices += survey.notices(self._format, texts, self._vocabulary.num_uses)
    self._notices += [*self._vocabulary.notices(), *self._classes.notices()]
    if self._test is None:
      self._is_test = self._sampled_for_testing()
    if self._options.merge_texts:
      self._later_labels = {split: self._labels_of_later_rows(split) for split in self._splits()}
    texts = self._vocabulary.texts
    keys = [*self._keys, *texts[len(self._keys) :]] if self._keys else []
    yield from label_tables.in_chunks(texts, keys)

  def _known_labels(self, samples: list[set[str]]) -> Vocabulary:
    """Returns the labels of a label file, of the tables' metadata, or of columns; otherwise none yet."""
    num_columns, unknown = self._format.num_columns, self._options.unknown_labels
    if self._label_file is None:
      one_hot = self._columns[self._train].labels
      numbers = one_hot if len(one_hot) > 1 else list(map(str, range(num_columns)))
      names = self._classes.names or numbers
      return Vocabulary(list(names), names, self._train.name, num_columns > 0) if names else Vocabulary()
    table = label_tables.read(self._label_file, self._options, self._notices, samples)
    self._keys = table.keys if table.keys != table.texts else []
    self._notices += label_tables.repeated_keys(self._label_file, table)
    if num_columns not in (0, len(table.texts)):
      expected = f"a label for each of the {num_columns:,} numbers in a row of {self._train.name}"
      raise DataError(f"{self._label_file}: expected {expected}, found {len(table.texts):,}")
    are_rows = not table.key_column or bool(num_columns)
    file = self._label_file.name
    vocabulary = Vocabulary(table.texts, table.keys, file, are_rows, unknown, table.key_column)
    self._classes.match(self._label_file.name, vocabulary)
    return vocabulary

  def _survey_cells(self) -> CellSurvey:
    """Looks at all label cells of all tables, as the first thousands may be unlike the rest."""
    survey = CellSurvey(self._options.label_separator)
    for split in self._splits():
      names = self._columns[split]
      others: Counter[str] = Counter()  # keys of rows without one for labels
      for place, rows in self._records(split):
        for row, record in enumerate(rows):
          survey.add(cell_of(record, names.labels, place, row))
          if names.labels[0] not in record:
            others.update(record.keys() - names.texts)
      self._notices += columns.misspelt(split.name, names.labels[0], others)
    return survey

  def _number_labels(self) -> None:
    """Reads all labels into the vocabulary, and which rows have the same text."""
    for split in self._splits():
      names = self._columns[split]
      hashes = array("q")
      for place, rows in self._records(split):
        texts = [joined_text(record, names.texts, place, row) for row, record in enumerate(rows)]
        hashes.extend(hashes_of(texts, len(hashes)))
        if split is self._train and place.path not in split.held_out:
          self._num_train = len(hashes)
        for row, record in enumerate(rows):
          self._classes.count_unlabelled(place.path, record.get(names.labels[0]))
          self._vocabulary.add(self._labels_of(record, split, place, row), place, row)
      self._groups[split] = TextGroups(hashes)
    if not self._vocabulary.texts and not self._label_file:
      first = self._train.files[0]
      column = excerpt(self._columns[self._train].labels[0])
      have = columns.shown(column_names(first, [], self._options))
      change = f"set another with --config.data.label_column=NAME {have}"
      raise DataError(f"{first}: expected at least one label in column {column}, found none; {change}")

  def _sampled_for_testing(self) -> np.ndarray:
    """Returns `[rows]` bool, a random share of the rows; all rows of one text are on the same side."""
    groups = self._groups[self._train]
    num = int(groups.group[: self._num_train].max(initial=-1)) + 1  # without those of a validation file
    order = np.random.default_rng(self._options.split_seed).permutation(num)
    is_test = np.zeros(groups.num_groups, bool)
    is_test[order[: round(num * self._options.test_fraction)]] = True
    return is_test[groups.group]

  def _columns_taken(self) -> list[str]:
    """Returns a line for each table that names its columns and some of the labels."""
    label_file = f" in {self._label_file.name}" if self._label_file else ""
    some = list(islice((excerpt(text) for text in self._vocabulary.texts if text.strip()), 3))
    such_as = f", such as {', '.join(some)}{label_file}" if some else ""
    lines = []
    for split in self._splits():
      if split is self._train or self._columns[split] != self._columns[self._train]:
        names, label = self._columns[split]
        has_names = "text" in self.read_by  # labelled lines have none that could be changed
        texts = columns.taken("text", names, has_names and "+".join(names) != self._options.text)
        labels = columns.taken("label_column", label, has_names and not self._options.label_column)
        lines.append(f"{split.name}: texts from {texts}, labels from {labels}{such_as}")
        such_as = ""
    return lines

  def rows(self, of_test: bool, num_labels: int) -> Iterator[Rows]:
    """Yields the points of one split."""
    done = 0
    split = self._test if of_test and self._test else self._train
    names = self._columns[split].texts
    groups = self._groups[split]
    is_chosen = np.ones(len(groups.group), bool) if self._test else self._is_test == of_test
    if self._options.merge_texts:
      is_chosen &= ~groups.is_later
    for place, records_ in self._records(split):
      chosen = np.flatnonzero(is_chosen[done : done + len(records_)]).tolist()
      texts = [joined_text(records_[row], names, place, row) for row in chosen]
      cells = [self._vocabulary.ids_of(self._labels_of(records_[row], split, place, row)) for row in chosen]
      for cell, row in zip(cells, chosen):
        more = self._later_labels[split].get(int(groups.group[done + row]), ())
        cell += [label for label in dict.fromkeys(more) if label not in cell]
      done += len(records_)
      counts = np.fromiter(map(len, cells), np.int64, len(cells))
      ids = np.array(list(chain.from_iterable(cells)), np.int64)
      here = place._replace(numbers=[place.numbers[row] for row in chosen])
      yield Rows(texts, Pairs(counts, ids, np.ones(len(ids), np.float32), here))

  def _labels_of_later_rows(self, split: SplitFiles) -> dict[int, list[int]]:
    """Returns the labels of the rows that repeat a text, by the number of the text; notes how many do."""
    labels_of: dict[int, list[int]] = {}
    groups, done = self._groups[split], 0
    if not (num_later := int(groups.is_later.sum())):
      return labels_of
    for place, rows in self._records(split):
      for row in np.flatnonzero(groups.is_later[done : done + len(rows)]).tolist():
        labels = self._vocabulary.ids_of(self._labels_of(rows[row], split, place, row))
        labels_of.setdefault(int(groups.group[done + row]), []).extend(labels)
      done += len(rows)
    self._notices.append(
      f"{split.name}: {num_later:,} of {done:,} rows repeat an earlier text, and are merged with its row "
      "(change with --config.data.merge_texts=False)"
    )
    return labels_of

  def _splits(self) -> list[SplitFiles]:
    return [split for split in (self._train, self._test) if split]

  def _records(self, split: SplitFiles) -> Iterator[tuple[Place, list[dict]]]:
    names, labels = self._columns[split]
    for path in split.files:
      for place, rows in records(path, (*names, *labels), self._notices, self._options):
        for row, name in product(rows, names):
          row.setdefault(name)  # a row of JSON may lack a text
        yield place, rows

  def _labels_of(self, record: dict, split: SplitFiles, place: Place, row: int) -> list[str | int]:
    cell = cell_of(record, self._columns[split].labels, place, row)
    return self._classes.named(self._format.labels(cell, place, row), place, row)

  def _one_hot_columns(self, path: Path) -> tuple[str, ...]:
    """Returns the columns of a table whose first rows hold 0 and 1 only; those of train if there is train."""
    if self._train in self._columns:
      return self._columns[self._train].labels
    with suppress(DataError):  # a column of another type, which nobody may need
      return columns_of_bits(next(records(path, (), self._notices, self._options))[1])
    return ()

  def _find_columns(self, split: SplitFiles) -> TableColumns:
    first, *others = split.files
    have_first = column_names(first, self._notices, self._options)
    one_hot = partial(self._one_hot_columns, first)
    chosen = columns.text_and_label_columns(first, have_first, self._options, one_hot, self._notices)
    for path in others:
      refuse_missing(path, first.name, chosen, self._notices, self._options)
    return chosen
