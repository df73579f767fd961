"""The types that every reader returns: the common form of all file layouts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from xmc_jax.errors import DataError

EXCERPT_LENGTH = 60
_SAID_LENGTH = 160  # letters kept of a library's error message


class Options(NamedTuple):
  """Holds the options for reading a source; each is part of the cache key.

  Attributes:
    text: the field or column with a point's text, or several joined by '+'
      ('title+content').
    label_column: the column of labels in a table, or several of 0 and 1 joined by '+'; '' guesses.
    label_separator: the separator of labels in one cell of a table; '' guesses it.
    label_file: label texts, as a path relative to the table or folder; '' looks for the layout's own names.
    unknown_labels: what becomes of labels that the label file lacks: 'refuse', 'drop' or 'keep'.
    label_text: the columns of a file of labels that make up a label's text, as in `text`; '' guesses.
    label_parent: the column with the key of a label's parent, whose ancestors' names come before the
      label's text; '' reads none.
    test_fraction: share of the rows to test on, if a table has no test file.
    split_seed: the seed of that split.
    merge_texts: whether rows of a table that have the same text become one row.
    encoding: of text files, by Python's name; '' is UTF-8, or UTF-16 if a file begins with its mark.
    quoting: what a quotation mark is in a CSV or TSV file: 'auto', 'minimal' or 'none', as in `csv`.
    filter_equal_texts: whether points and labels with the same text are the filter of a split without a file.
  """

  text: str = "title"
  label_column: str = ""
  label_separator: str = ""
  label_file: str = ""
  unknown_labels: str = "refuse"
  label_text: str = ""
  label_parent: str = ""
  test_fraction: float = 0.2
  split_seed: int = 0
  merge_texts: bool = True
  encoding: str = ""
  quoting: str = "auto"
  filter_equal_texts: bool = False


DEFAULTS = Options()


class Place(NamedTuple):
  """Holds the position of rows in their file, so that an error can name the bad row.

  Attributes:
    path: the file.
    numbers: the line (or row) number of each row.
    unit: 'line', or 'row' in files without lines.
  """

  path: Path
  numbers: Sequence[int]
  unit: str = "line"

  def refuse(self, row: int, expected: str, found: object = None) -> DataError:
    """Returns the error for one of these rows."""
    return refusal(self.path, self.numbers[row], expected, found, self.unit)


class Pairs(NamedTuple):
  """Holds some rows of a sparse matrix, as they are in the file.

  Attributes:
    counts: `[n]` int64 number of entries of each row.
    ids: `[sum(counts)]` int64 column ids.
    values: `[sum(counts)]` float32 relevance.
    place: where the rows come from.
  """

  counts: np.ndarray
  ids: np.ndarray
  values: np.ndarray
  place: Place


class Rows(NamedTuple):
  """Holds some points: texts, targets, and the number of rows in the whole file (None: unknown)."""

  texts: list[str]
  targets: Pairs
  total: int | None = None


class KeyedTexts(NamedTuple):
  """Holds some texts and what their owner calls each (URI, SKU, uid); None if they have no other name."""

  texts: list[str]
  keys: list[str] | None = None


class GraphFiles(NamedTuple):
  """Holds the files of one metadata graph; a missing side is None."""

  name: str
  anchors: Path
  query_edges: Path | None
  label_edges: Path | None


class Source(NamedTuple):
  """Holds a data set that has been recognised but not yet read.

  Attributes:
    layout: the name of its layout.
    name: the name of the data set.
    files: every file that will be read.
    labels_file: the file that labels come from.
    labels: yields labels, some at a time.
    splits: 'train' and 'test'; each takes the number of labels (which are read first)
      and yields points, some at a time.
    filters: the file of "row label" pairs to leave out of each split; None if there is none.
    graphs: metadata graphs.
    notices: messages for the user; readers add to them.
    options: how the files are read.
    read_by: the options that were guessed, as resolved; of tables, whether 'numbers' of labels are 'rows'.
    held_out: the files, last of the training rows, whose rows choose the best parameters.
  """

  layout: str
  name: str
  files: tuple[Path, ...]
  labels_file: Path
  labels: Callable[[], Iterator[KeyedTexts]]
  splits: dict[str, Callable[[int], Iterator[Rows]]]
  filters: dict[str, Path | None]
  graphs: tuple[GraphFiles, ...]
  notices: list[str]
  options: Options
  read_by: dict[str, str]
  held_out: tuple[Path, ...] = ()


def excerpt(found: object) -> str:
  """Returns a short quoted excerpt of a value, for an error message."""
  if isinstance(found, bytes):  # a line may be long, and a letter has at most four bytes
    found = found[: 4 * EXCERPT_LENGTH + 4].decode("utf-8", "replace")
  text = found if isinstance(found, str) else repr(found)
  return repr(text if len(text) <= EXCERPT_LENGTH else text[:EXCERPT_LENGTH] + "...")


def some_of(names: list[str]) -> str:
  """Returns the first of these names, for an error message."""
  return ", ".join([*names[:4], *["..."] * (len(names) > 4)])


def one_line(error: Exception) -> str:
  """Returns a library's error message, shortened and without line breaks."""
  said = " ".join(str(error).split())
  return said if len(said) <= _SAID_LENGTH else said[:_SAID_LENGTH] + "..."


def refusal(path: Path, number: int, expected: str, found: object = None, unit: str = "line") -> DataError:
  """Returns a one-line error that names file, line, what was expected and an excerpt of what was found."""
  tail = "" if found is None else f", found {excerpt(found)}"
  return DataError(f"{path}, {unit} {number}: expected {expected}{tail}")


def hashes_of(texts: Iterable[str], num_before: int) -> list[int]:
  """Returns a 64-bit hash of each text, valid in this process; an empty text is like no other.

  Args:
    texts: the texts of consecutive rows.
    num_before: how many rows come before them.
  """
  return [hash(text if text.strip() else (None, num_before + row)) for row, text in enumerate(texts)]
