"""Tables with a column of texts and a column of labels, with or without a test file."""

from array import array
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, compress, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from xmc_jax.data.formats import class_names, columns, document_folders, label_tables, table_files
from xmc_jax.data.formats.columns import TableColumns
from xmc_jax.data.formats.json_records import joined_text
from xmc_jax.data.formats.label_cells import CellSurvey, cell_of
from xmc_jax.data.formats.label_ids import Vocabulary
from xmc_jax.data.formats.source import KeyedTexts, Options, Pairs, Place, Rows, excerpt, hashes_of, some_of
from xmc_jax.data.formats.table_files import SUFFIXES, SplitFiles, find_splits, records, suffix
from xmc_jax.data.vocabulary import files as vocabulary_files
from xmc_jax.errors import ConfigError, DataError

LOOKS_FOR = (
  "train.* and test.*, train-00000-of-00002.* and so on, or one file, in .jsonl, .json, .csv, .tsv, "
  ".parquet, .xlsx or fastText's .txt; train/ID.txt and train/ID.tsv or ID.key, and test/"
)
POINT_SUFFIXES = (*SUFFIXES, ".txt")
_SAMPLE = 1000  # texts, to tell their language
_HUB_FOLDER = "data"  # where repositories of the hub have their tables


def recognise(path: Path, options: Options, notices: list[str]) -> dict | None:
  """Returns the `Source` fields of this layout, or None if there is no such table; refuses several."""
  if path.is_file():
    labels = label_tables.find_label_file(path, options)
    return source_fields(SplitFiles((path,)), None, labels, options, notices)
  train, test = find_splits(path, POINT_SUFFIXES, notices)
  points = [*(train.files if train else ()), *(test.files if test else ())]
  labels = label_tables.find_label_file(path, options, points)
  if train is None:
    train, test = table_files.find_documents(path, labels, options)
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
      train = SplitFiles((tables[0],))
  if train is None:
    return None
  if labels and not options.vocabulary and vocabulary_files.is_vocabulary(labels, options):
    labels = labels if table_files.is_annifs(train.files[0], options) else None
  return source_fields(train, test, labels, options, notices)


def source_fields(
  train: SplitFiles, test: SplitFiles | None, labels: Path | None, options: Options, notices: list[str]
) -> dict:
  """Returns the `Source` fields of these tables; without a test table, a share of train is held out."""
  if labels is None:
    label_tables.refuse_settings_without_columns(train.files[0], options)
  tables = (*train.files, *(test.files if test else ()))
  reader = _Tables(train, test, labels, options, notices)
  return {
    "files": tuple(chain(*map(document_folders.files_of, tables), [labels] if labels else [])),
    "labels_file": labels or train.files[0],
    "held_out": train.held_out,
    "labels": reader.labels,
    "splits": {"train": partial(reader.rows, False), "test": partial(reader.rows, True)},
    "unordered": reader.unordered(),
    "read_by": reader.read_by,
  }


class _Scan(NamedTuple):
  """Holds what the first pass over the tables of a split finds."""

  columns: TableColumns
  cells: list[object]  # the label cell of each row
  places: list[Place]  # where the rows come from, some rows each
  group: np.ndarray  # [rows] int64, the number of each row's text, in order of first appearance
  is_later: np.ndarray  # [rows] bool, whether an earlier row has the same text
  num_train: int  # rows that come before those of a validation file
  class_names: dict[Path, list[str]]  # the names of the classes in each table's label column

  def rows(self) -> Iterator[tuple[object, Place, int]]:
    """Yields the label cell of each row, and where it is."""
    places = ((place, row) for place in self.places for row in range(len(place.numbers)))
    return ((cell, place, row) for cell, (place, row) in zip(self.cells, places))


class _Tables:
  """Reads one or two tables in two passes: one for labels and which texts are equal, one for the points.

  Holds the label cells of all rows, then their ids, in memory between passes.
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
    self._known = label_tables.LabelTable([], [])
    self._some_texts: list[str] = []  # the first of train
    self._scans: dict[SplitFiles, _Scan] = {}
    self._ids: dict[SplitFiles, list[array]] = {}

  def unordered(self) -> dict[str, str]:
    """Returns why the rows of a graph file cannot be matched to points or labels, by side of the graph."""
    reasons = {}
    if not self._test and self._options.test_fraction:
      remedy = "put test.csv beside, or set --config.data.test_fraction=0"
      reasons["query_edges"] = f"a share of the points is held out for testing: {remedy}"
    if not self._label_file:
      remedy = "put labels.txt beside, a label a line"
      reasons["label_edges"] = f"labels have no order but that of the points: {remedy}"
    return reasons

  def labels(self) -> Iterator[KeyedTexts]:
    """Numbers the labels and yields them; without keys if they are called by their texts."""
    for split in filter(None, (self._train, self._test)):
      self._scans[split] = self._scan(split)
    cells = chain.from_iterable(scan.cells for scan in self._scans.values())
    survey = CellSurvey(self._options.label_separator, list(cells))
    self._format = survey.format()
    names = [*chain.from_iterable(scan.class_names.values() for scan in self._scans.values())]
    self._class_names = list(dict.fromkeys(chain.from_iterable(names)))
    samples = [{*self._class_names}] if self._class_names else survey.samples()
    self._vocabulary = self._known_labels(samples)
    self._has_classes = all(name in self._vocabulary for name in self._class_names)
    if self._label_file:
      self._format = survey.format(self._vocabulary)
    for split, scan in self._scans.items():
      self._ids[split] = [array("q", self._number(*row, scan)) for row in scan.rows()]
    if self._label_file and any(concept.deprecated for concept in self._known.concepts):
      self._leave_out_deprecated(self._label_file.name)
    if not self._vocabulary.texts and not self._label_file:
      first = self._train.files[0]
      column = excerpt(self._scans[self._train].columns.labels[0])
      have = columns.shown(table_files.column_names(first, [], self._options))
      change = f"set another with --config.data.label_column=NAME {have}"
      raise DataError(f"{first}: expected at least one label in column {column}, found none; {change}")
    self._say_what_was_read(survey)
    for split, scan in self._scans.items():
      if self._options.merge_texts and scan.is_later.any():
        self._merge(split, scan)
      scan.cells.clear()
    yield from label_tables.chunks_of(self._vocabulary.texts, self._known)

  def _scan(self, split: SplitFiles) -> _Scan:
    of_train = self._scans[self._train].columns if self._scans else None
    names = table_files.find_columns(split, of_train, self._options, self._notices)
    cells: list[object] = []
    places: list[Place] = []
    hashes = array("q")
    known: dict[object, object] = {}  # makes equal texts one object
    num_train = 0
    for place, rows in self._records(split, (*names.texts, *names.labels)):
      for row, record in enumerate(rows):
        cell = cell_of(record, names.labels, place, row)
        if isinstance(cell, list):
          cell = [known.setdefault(item, item) if isinstance(item, str) else item for item in cell]
        cells.append(known.setdefault(cell, cell) if isinstance(cell, str) else cell)
      texts = _texts(rows, range(len(rows)), names.texts, place)
      hashes.extend(hashes_of(texts, len(hashes)))
      self._some_texts = self._some_texts or texts[:_SAMPLE]
      places.append(place._replace(numbers=array("q", place.numbers)))
      if place.path not in split.held_out:
        num_train = len(hashes)
    _, first, inverse = np.unique(np.frombuffer(hashes, np.int64), return_index=True, return_inverse=True)
    is_later = np.ones(len(hashes), bool)
    is_later[first] = False
    group = np.argsort(np.argsort(first))[inverse]
    classes = class_names.class_names(split, names.labels[0])
    return _Scan(names, cells, places, group, is_later, num_train, classes)

  def _known_labels(self, samples: list[set[str]]) -> Vocabulary:
    """Returns the labels of a label file, of the tables' metadata, or of columns; otherwise none yet."""
    num_columns, unknown = self._format.num_columns, self._options.unknown_labels
    if self._label_file is None:
      one_hot = self._scans[self._train].columns.labels
      numbers = one_hot if len(one_hot) > 1 else list(map(str, range(num_columns)))
      names = self._class_names or numbers
      return Vocabulary(list(names), names, self._train.name, num_columns > 0) if names else Vocabulary()
    table = label_tables.read(self._label_file, self._options, self._notices, samples, self._some_texts)
    self._known = table
    self._notices += label_tables.repeated_keys(self._label_file, table)
    if num_columns not in (0, len(table.texts)):
      expected = f"a label for each of the {num_columns:,} numbers in a row of {self._train.name}"
      raise DataError(f"{self._label_file}: expected {expected}, found {len(table.texts):,}")
    are_rows = not table.key_column or bool(num_columns)
    column, called = table.key_column, [concept.cell_names() for concept in table.concepts]
    if called:
      column = ""  # URIs are in none
      unknown = "drop_few" if unknown == "refuse" else unknown
    return Vocabulary([*table.texts], table.keys, self._label_file.name, are_rows, unknown, column, called)

  def _leave_out_deprecated(self, file_name: str) -> None:
    """Numbers the labels anew, without the deprecated concepts that no row has; notes how many."""
    is_left = np.ones(len(self._vocabulary.texts), bool)
    is_left[: len(self._known.concepts)] = [not concept.deprecated for concept in self._known.concepts]
    num_deprecated = int((~is_left).sum())
    for row in chain.from_iterable(self._ids.values()):
      is_left[row] = True
    new, num_left_out = np.cumsum(is_left) - 1, int((~is_left).sum())
    self._ids = {split: [array("q", new[row]) for row in rows] for split, rows in self._ids.items()}
    self._vocabulary.texts = list(compress(self._vocabulary.texts, is_left))
    self._known = label_tables.some_labels(self._known, is_left)
    unused = f"{num_left_out:,} of {num_deprecated:,}"
    self._notices.append(f"{file_name}: deprecated concepts that no row has are no labels: {unused}")

  def _number(self, cell: object, place: Place, row: int, scan: _Scan) -> list[int]:
    labels = self._format.labels(cell, place, row)
    if self._has_classes and (names := scan.class_names.get(place.path)):
      labels = class_names.named(labels, names, place, row)
    return self._vocabulary.add(labels, place, row)

  def _merge(self, split: SplitFiles, scan: _Scan) -> None:
    """Adds the labels of rows that repeat a text to the first row of the text; notes how many do."""
    ids, first = self._ids[split], np.flatnonzero(~scan.is_later)
    for row in np.flatnonzero(scan.is_later).tolist():
      own = ids[first[scan.group[row]]]
      own.extend([label for label in dict.fromkeys(ids[row]) if label not in own])
    self._notices.append(
      f"{split.name}: {scan.is_later.sum():,} of {len(ids):,} rows repeat an earlier text, and are merged "
      "with its row (change with --config.data.merge_texts=False)"
    )

  def _say_what_was_read(self, survey: CellSurvey) -> None:
    """Adds notices on columns, cells and labels; sets `read_by`."""
    named = table_files.resolved(self._train.files[0], self._scans[self._train].columns, self._options)
    self.read_by |= {**named, "label_separator": survey.separator(self._format)}
    has_rows = self._vocabulary.has_rows or (bool(self._class_names) and not self._label_file)
    self.read_by["numbers"] = "rows" if has_rows else ""
    self._notices += self._columns_taken()
    texts = [] if self._label_file or self._class_names else self._vocabulary.texts
    self._notices += survey.notices(self._format, texts, self._vocabulary.num_uses)
    self._notices += self._vocabulary.notices()
    rows = chain.from_iterable(scan.rows() for scan in self._scans.values() if scan.class_names)
    num_unlabelled = sum(class_names.is_unlabelled(cell) for cell, *_ in rows)
    label_file = self._label_file.name if self._label_file else ""
    self._notices += class_names.notices(self._class_names, label_file, self._has_classes, num_unlabelled)

  def _columns_taken(self) -> Iterator[str]:
    """Yields a line for each table that names its columns and some of the labels."""
    label_file = f" in {self._label_file.name}" if self._label_file else ""
    names = self._known.names or self._vocabulary.texts
    some = list(islice((excerpt(text) for text in names if text.strip()), 3))
    such_as = f", such as {', '.join(some)}{label_file}" if some else ""
    for split, scan in self._scans.items():
      if split is self._train or scan.columns != self._scans[self._train].columns:
        yield columns.taken(split.name, scan.columns, self._options, "text" in self.read_by) + such_as
        such_as = ""

  def _sampled_for_testing(self, scan: _Scan) -> np.ndarray:
    """Returns `[rows]` bool, a random share of the rows; all rows of one text are on the same side."""
    num = int(scan.group[: scan.num_train].max(initial=-1)) + 1  # without those of a validation file
    order = np.random.default_rng(self._options.split_seed).permutation(num)
    is_test = np.zeros(int(scan.group.max(initial=-1)) + 1, bool)
    is_test[order[: round(num * self._options.test_fraction)]] = True
    return is_test[scan.group]

  def rows(self, of_test: bool, num_labels: int) -> Iterator[Rows]:
    """Yields the points of one split."""
    split = self._test if of_test and self._test else self._train
    scan, ids = self._scans[split], self._ids[split]
    is_chosen = np.ones(len(ids), bool) if self._test else self._sampled_for_testing(scan) == of_test
    if self._options.merge_texts:
      is_chosen &= ~scan.is_later
    done = 0
    for place, records_ in self._records(split, scan.columns.texts):
      chosen = np.flatnonzero(is_chosen[done : done + len(records_)]).tolist()
      texts = _texts(records_, chosen, scan.columns.texts, place)
      cells = [ids[done + row] for row in chosen]
      done += len(records_)
      here = place._replace(numbers=[place.numbers[row] for row in chosen])
      yield Rows(texts, Pairs.of_lists(cells, (), here))

  def _records(self, split: SplitFiles, names: Sequence[str]) -> Iterator[tuple[Place, list[dict]]]:
    for path in split.files:
      yield from records(path, names, self._notices, self._options)


def _texts(records: list[dict], chosen: Sequence[int], names: tuple[str, ...], place: Place) -> list[str]:
  """Returns the texts of some records; one of JSON may lack it."""
  none = dict.fromkeys(names)
  return [joined_text({**none, **records[row]}, names, place, row) for row in chosen]
