"""Tables with a column of texts and a column of labels, with or without a test file."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np

from xmc_jax.data.formats.label_cells import SplitTally, Vocabulary, guess_separator, split_cell
from xmc_jax.data.formats.lines import CHUNK_ROWS, find, text_chunks
from xmc_jax.data.formats.raw_json import joined_text
from xmc_jax.data.formats.source import Options, Pairs, Place, Rows, excerpt
from xmc_jax.data.formats.table_files import SUFFIXES, column_names, records, suffix
from xmc_jax.errors import ConfigError, DataError

LOOKS_FOR = "train.* and test.*, or one file, in .jsonl, .csv, .tsv or .parquet"

_TEXTS = ("title", "text", "query", "question", "sentence", "name", "description", "content", "body")
_LABELS = ("labels", "label", "tags", "targets", "target", "categories", "category", "classes", "topics", "y")
_MANY = 12  # columns shown in a message
_KEYS = ("id", "uid", "key", "label", "label_id", "name")


def recognise(path: Path, options: Options, notices: list[str]) -> dict | None:
  """Returns the `Source` fields of this layout, or None if there is no such table."""
  labels = _label_file(path, options)
  train: Path | None
  test: Path | None
  if path.is_file():
    train, test = path, None
  else:
    train, test = (find(path, *_named(*stems)) for stems in (("train", "trn"), ("test", "tst")))
  if train is None:
    tables = [file for file in sorted(path.iterdir()) if suffix(file) in SUFFIXES and file != labels]
    if len(tables) > 1:
      names = ", ".join(file.name for file in tables)
      notices.append(f"several tables, {names}, none of them train.*; take one with --config.data.path=FILE")
    if len(tables) != 1:
      return None
    train = tables[0]
  reader = _Tables(train, test, labels, options, notices)
  return {
    "files": tuple(file for file in (train, test, labels) if file),
    "labels_file": labels or train,
    "labels": reader.labels,
    "splits": {"train": partial(reader.rows, False), "test": partial(reader.rows, True)},
    "unordered": reader.unordered(),
  }


def _named(*stems: str, suffixes: tuple[str, ...] = SUFFIXES) -> list[str]:
  return [stem + kind for stem in stems for kind in suffixes]


def _label_file(path: Path, options: Options) -> Path | None:
  folder = path.parent if path.is_file() else path
  if options.label_file:
    file = folder / options.label_file
    if not file.is_file():
      raise DataError(f"{file}: no such file (--config.data.label_file={options.label_file})")
    return file
  return None if path.is_file() else find(folder, *_named("labels", "lbl", suffixes=(".txt", *SUFFIXES)))


class _Tables:
  """Reads one or two tables: a first pass numbers labels and splits rows, a second reads the points.

  Keeps the distinct labels (or all texts of a label file) and nine bytes per row in memory in between.
  """

  def __init__(self, train: Path, test: Path | None, labels: Path | None, options: Options, notices: list):
    self._train, self._test, self._label_file = train, test, labels
    self._options, self._notices = options, notices
    if not 0 <= options.test_fraction < 1:
      wrong = f"--config.data.test_fraction={options.test_fraction}"
      raise ConfigError(f"{wrong}: expected a share in [0, 1), such as 0.2")
    self._is_test = np.zeros(0, bool)

  def unordered(self) -> dict[str, str]:
    """Returns why the rows of a graph file cannot be matched to points or labels, by side of the graph."""
    found = {}
    if not self._test and self._options.test_fraction:
      found["query_edges"] = (
        "a share of the points is held out for testing: put test.csv beside, or set "
        "--config.data.test_fraction=0"
      )
    if not self._label_file:
      found["label_edges"] = (
        "labels have no order but that of the points: put labels.txt beside, a label a line"
      )
    return found

  def labels(self) -> Iterator[list[str]]:
    """Numbers the labels and yields their texts."""
    self._columns = {path: self._find_columns(path) for path in self._files()}
    self._separator = self._options.label_separator or self._guess_separator()
    self._vocabulary = self._read_label_file(self._label_file) if self._label_file else Vocabulary()
    tally = self._number_labels()
    num_rows = tally.rows
    self._notices += self._columns_taken()
    if notice := tally.notice(self._separator, is_given=bool(self._options.label_separator)):
      self._notices.append(notice)
    if self._test is None:
      order = np.random.default_rng(self._options.split_seed).permutation(num_rows)
      self._is_test = np.zeros(num_rows, bool)
      self._is_test[order[: round(num_rows * self._options.test_fraction)]] = True
    texts = self._vocabulary.texts
    for first in range(0, len(texts), CHUNK_ROWS):
      yield texts[first : first + CHUNK_ROWS]

  def _number_labels(self) -> SplitTally:
    """Reads all labels into the vocabulary."""
    tally = SplitTally()
    for path in self._files():
      column = self._columns[path][1]
      for place, rows in self._records(path):
        for row, record in enumerate(rows):
          labels = self._cell(record, place, row)
          tally.add(record.get(column), labels)
          self._vocabulary.add(labels)
    if not self._vocabulary.texts and not self._label_file:
      column = excerpt(self._columns[self._train][1])
      change = f"set another with --config.data.label_column=NAME {_shown(column_names(self._train, []))}"
      raise DataError(f"{self._train}: expected at least one label in column {column}, found none; {change}")
    return tally

  def _columns_taken(self) -> list[str]:
    """Returns a line for each table that names its columns and some of the labels."""
    label_file = f" in {self._label_file.name}" if self._label_file else ""
    some = list(islice((excerpt(text) for text in self._vocabulary.texts if text.strip()), 3))
    such_as = f", such as {', '.join(some)}{label_file}" if some else ""
    lines = []
    for path in self._files():
      if path == self._train or self._columns[path] != self._columns[self._train]:
        names, label = self._columns[path]
        texts = _taken("text", names, "+".join(names) != self._options.text)
        labels = _taken("label_column", (label,), not self._options.label_column)
        lines.append(f"{path.name}: texts from {texts}, labels from {labels}{such_as}")
        such_as = ""
    return lines

  def rows(self, of_test: bool, num_labels: int) -> Iterator[Rows]:
    """Yields the points of one split."""
    done = 0
    for place, records_ in self._records(self._test if of_test and self._test else self._train):
      if self._test is None:
        chosen: Sequence[int] = np.flatnonzero(self._is_test[done : done + len(records_)] == of_test).tolist()
      else:
        chosen = range(len(records_))
      done += len(records_)
      names = self._columns[place.path][0]
      texts = [joined_text(records_[row], names, place, row) for row in chosen]
      cells = [
        [self._vocabulary.id_of(label, place, row) for label in self._cell(records_[row], place, row)]
        for row in chosen
      ]
      counts = np.fromiter(map(len, cells), np.int64, len(cells))
      ids = np.array(list(chain.from_iterable(cells)), np.int64)
      here = place._replace(numbers=[place.numbers[row] for row in chosen])
      yield Rows(texts, Pairs(counts, ids, np.ones(len(ids), np.float32), here))

  def _files(self) -> list[Path]:
    return [path for path in (self._train, self._test) if path]

  def _records(self, path: Path) -> Iterator[tuple[Place, list[dict]]]:
    names, label = self._columns[path]
    return records(path, (*names, label), self._notices)

  def _cell(self, record: dict, place: Place, row: int) -> list[str | int]:
    return split_cell(record.get(self._columns[place.path][1]), self._separator, place, row)

  def _find_columns(self, path: Path) -> tuple[tuple[str, ...], str]:
    have = column_names(path, self._notices)
    asked = self._options.text
    not_text = [name for name in have if name not in (asked, *asked.split("+"))]
    label = self._options.label_column or _guess(_LABELS, not_text)
    label = label if label in have else ""
    texts = _text_columns(self._options.text, [name for name in have if name != label])
    if not label or not texts:
      raise _columns_missing(path, have, self._options, texts, label)
    return texts, label

  def _guess_separator(self) -> str:
    label = self._columns[self._train][1]
    cells = (record.get(label) for _, rows in self._records(self._train) for record in rows)
    return guess_separator(islice(cells, CHUNK_ROWS))

  def _read_label_file(self, path: Path) -> Vocabulary:
    if suffix(path) not in SUFFIXES:
      return Vocabulary(list(chain.from_iterable(text_chunks(path, self._notices))), file_name=path.name)
    have = column_names(path, self._notices)
    key = _guess(_KEYS, have)
    # Its columns may have other names than those of the points, so a guess is allowed.
    others = [name for name in have if name != key] or have
    wanted = self._options.text if self._options.text in others else "title"
    names = _text_columns(wanted, others)
    if not names:
      raise DataError(f"{path}: expected a column of texts called {', '.join(_TEXTS)} {_shown(have)}")
    texts, keys = [], []
    for place, rows in records(path, (*names, *([key] if key else [])), self._notices):
      texts += [joined_text(record, names, place, row) for row, record in enumerate(rows)]
      keys += [str(record.get(key)) for record in rows] if key else []
    return Vocabulary(texts, keys if key else None, path.name)


def _guess(candidates: tuple[str, ...], have: list[str]) -> str:
  by_lower = {name.lower(): name for name in reversed(have)}
  return next((by_lower[name] for name in candidates if name in by_lower), "")


def _text_columns(wanted: str, have: list[str]) -> tuple[str, ...]:
  """Returns the columns that make up the text; none if they are missing."""
  for names in ((wanted,), tuple(wanted.split("+"))):
    if all(name in have for name in names):
      return names
  # 'title' is the default, so it may mean any usual name of a text column.
  guess = _guess(_TEXTS, have) if wanted == "title" else ""
  return (guess,) if guess else ()


def _columns_missing(path: Path, have: list[str], options: Options, texts: tuple, label: str) -> DataError:
  """Returns the one-line error for a table without a column of texts, of labels, or both."""
  if label and options.text == options.label_column:
    return DataError(f"{path}: expected texts and labels in two columns, found {excerpt(label)} for both")
  wanted, flags = [], []
  if not texts:
    name = "" if options.text == "title" else f" {excerpt(options.text)}"
    wanted.append(f"a column{name} of texts")
    flags.append("--config.data.text=NAME")
  if not label:
    name = f" {excerpt(options.label_column)}" if options.label_column else ""
    wanted.append(f"a column{name} of labels")
    flags.append("--config.data.label_column=NAME")
  return DataError(f"{path}: expected {' and '.join(wanted)}; set {' and '.join(flags)} {_shown(have)}")


def _shown(columns: list[str]) -> str:
  more = ["..."] if len(columns) > _MANY else []
  return f"(columns: {', '.join([*map(excerpt, columns[:_MANY]), *more])})"


def _taken(key: str, names: tuple[str, ...], is_guess: bool) -> str:
  """Returns the column names and, if they were guessed, how to choose others."""
  shown = "column " + " and ".join(map(excerpt, names))
  return f"{shown} (guessed; change with --config.data.{key})" if is_guess else shown
