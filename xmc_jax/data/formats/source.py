"""What every reader hands on: the one shape that all file layouts are brought into."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from xmc_jax.errors import DataError

EXCERPT_LENGTH = 60
_SAID_LENGTH = 160  # of a library's own message


class Options(NamedTuple):
  """How to read a source; everything here has its say in the cache key.

  Attributes:
    text: what a point's text is: a field or column, or several joined by '+'
      ('title+content').
    label_column: the labels' column in a table; '' guesses.
    label_separator: what separates labels in one cell of a table; '' guesses.
    label_file: label texts of a table, relative to it; '' looks for `labels.*`.
    test_fraction: share of the rows to test on, where a table brings no test file.
    split_seed: the seed of that split.
  """

  text: str = "title"
  label_column: str = ""
  label_separator: str = ""
  label_file: str = ""
  test_fraction: float = 0.2
  split_seed: int = 0


class Place(NamedTuple):
  """Where rows stand in their file, so that a refusal can point at one of them.

  Attributes:
    path: the file.
    numbers: the line (or row) number of each row.
    unit: 'line', or 'row' in files that have no lines.
  """

  path: Path
  numbers: Sequence[int]
  unit: str = "line"

  def refuse(self, row: int, expected: str, found: object = None) -> DataError:
    """The error for one of these rows."""
    return refusal(self.path, self.numbers[row], expected, found, self.unit)


class Pairs(NamedTuple):
  """Some rows of a sparse matrix, as they stand in the file.

  Attributes:
    counts: `[n]` int64 entries of each row.
    ids: `[sum(counts)]` int64 columns.
    values: `[sum(counts)]` float32 relevance.
    place: where the rows come from.
  """

  counts: np.ndarray
  ids: np.ndarray
  values: np.ndarray
  place: Place


class Rows(NamedTuple):
  """Some points: their texts, their targets, and how many rows the file will give (None: unknown)."""

  texts: list[str]
  targets: Pairs
  total: int | None = None


class GraphFiles(NamedTuple):
  """The files of one metadata graph; a side that is missing is None."""

  name: str
  anchors: Path
  query_edges: Path | None
  label_edges: Path | None


class Source(NamedTuple):
  """A data set that has been recognised but not yet read.

  Attributes:
    layout: the name of its layout.
    name: what to call the data set.
    files: every file that will be read.
    labels_file: the one that labels come from.
    labels: yields label texts, some at a time.
    splits: 'train' and 'test'; each takes the number of labels (which are read first)
      and yields points, some at a time.
    filters: file of "row label" pairs to leave out, for each split; None without one.
    graphs: metadata graphs.
    notices: what the user should be told; readers add to it.
  """

  layout: str
  name: str
  files: tuple[Path, ...]
  labels_file: Path
  labels: Callable[[], Iterator[list[str]]]
  splits: dict[str, Callable[[int], Iterator[Rows]]]
  filters: dict[str, Path | None]
  graphs: tuple[GraphFiles, ...]
  notices: list[str]


def excerpt(found: object) -> str:
  """The smallest useful piece of what was found, quoted."""
  if isinstance(found, bytes):  # a line may be long, and no letter has more than four of them
    found = found[: 4 * EXCERPT_LENGTH + 4].decode("utf-8", "replace")
  text = found if isinstance(found, str) else _shown(found)
  return repr(text if len(text) <= EXCERPT_LENGTH else text[:EXCERPT_LENGTH] + "...")


def _shown(value: object) -> str:
  try:
    return repr(value)
  except RecursionError:  # a list can be nested just deeply enough to be read, and too deeply to be shown
    return f"a {type(value).__name__}, nested deeply"


def one_line(error: Exception) -> str:
  """What a library says of a file, short and without line breaks."""
  said = " ".join(str(error).split())
  return said if len(said) <= _SAID_LENGTH else said[:_SAID_LENGTH] + "..."


def refusal(path: Path, number: int, expected: str, found: object = None, unit: str = "line") -> DataError:
  """The one line that refuses a file: name, line, what was expected, an excerpt."""
  tail = "" if found is None else f", found {excerpt(found)}"
  return DataError(f"{path}, {unit} {number}: expected {expected}{tail}")
