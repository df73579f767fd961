"""The types that every reader returns: the common form of all file layouts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from xmc_jax.data.vocabulary.concepts import Concept
from xmc_jax.errors import DataError

EXCERPT_LENGTH = 60
_SAID_LENGTH = 160  # letters kept of a library's error message


class Options(NamedTuple):
  """Holds the options for reading a source; each is part of the cache key.

  They are the keys of `config.data` of the same name (docs/settings.md).
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
  vocabulary: str = ""
  language: str = ""
  alternative_names: bool = False


DEFAULTS = Options()


class Place(NamedTuple):
  """Holds the position of rows in their file, so that an error can name the bad row."""

  path: Path
  numbers: Sequence[int]  # of each row's line, or of the row
  unit: str = "line"  # 'row' in files without lines

  def refuse(self, row: int, expected: str, found: object = None) -> DataError:
    """Returns the error for one of these rows."""
    return refusal(self.path, self.numbers[row], expected, found, self.unit)


class Pairs(NamedTuple):
  """Holds some rows of a sparse matrix, as they are in the file."""

  counts: np.ndarray  # [n] int64 number of entries of each row
  ids: np.ndarray  # [sum(counts)] int64 columns
  values: np.ndarray  # [sum(counts)] float32 relevance
  place: Place

  @classmethod
  def of_lists(cls, ids: Sequence[Sequence[int]], values: Sequence[Sequence[float]], place: Place) -> Self:
    """Returns the pairs of these rows; without `values`, each has relevance 1."""
    counts = np.fromiter(map(len, ids), np.int64, len(ids))
    flat = np.fromiter(chain.from_iterable(ids), np.int64, counts.sum())
    relevance = np.fromiter(chain.from_iterable(values), np.float32) if values else np.ones(len(flat), "f4")
    return cls(counts, flat, relevance, place)


class Rows(NamedTuple):
  """Holds some points: texts, targets, and the number of rows in the whole file (None: unknown)."""

  texts: list[str]
  targets: Pairs
  total: int | None = None


class KeyedTexts(NamedTuple):
  """Holds some texts and what their owner calls each (URI, SKU, uid); None if they have no other name."""

  texts: list[str]
  keys: list[str] | None = None
  names: list[str] | None = None  # of labels: what is shown, if it is not the text
  concepts: list[str] | None = None  # of the labels of a vocabulary: their concepts, as JSON


class LabelTable(NamedTuple):
  """Holds the labels of a file, in its order."""

  texts: list[str]  # ancestors, name and description, joined as the options ask
  keys: list[str]  # what cells call each label: its key or, without a column of keys, its name
  key_column: str = ""  # '' if there is none, and a number means a row, counted from 0
  names: Sequence[str] = ()  # what is shown of each label; its text if there are none
  concepts: Sequence[Concept] = ()  # what a vocabulary says of each label


class GraphFiles(NamedTuple):
  """Holds the files of one metadata graph; a missing side is None."""

  name: str
  anchors: Path
  query_edges: Path | None
  label_edges: Path | None


class Source(NamedTuple):
  """Holds a data set that has been recognised but not yet read."""

  layout: str
  name: str
  files: tuple[Path, ...]  # every file that will be read
  labels_file: Path  # where labels come from, for messages
  labels: Callable[[], Iterator[KeyedTexts]]  # yields labels, some at a time
  splits: dict[str, Callable[[int], Iterator[Rows]]]  # 'train' and 'test', given the number of labels
  filters: dict[str, Path | None]  # the file of "row label" pairs to leave out of each split
  graphs: tuple[GraphFiles, ...]
  notices: list[str]  # for the user; readers add to them
  options: Options
  read_by: dict[str, str]  # guessed options, as resolved; of tables, whether 'numbers' of labels are 'rows'
  held_out: tuple[Path, ...] = ()  # the last files of train, whose rows choose the best parameters


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
  """Returns a 64-bit hash of each text, valid in this process.

  An empty text is like no other: it is hashed by its row, of which there are `num_before` before these.
  """
  return [hash(text if text.strip() else (None, num_before + row)) for row, text in enumerate(texts)]
