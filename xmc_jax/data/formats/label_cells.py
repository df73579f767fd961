"""Label cells of tables: lists of names or ids, or strings with a separator.

Only the distinct labels and their texts are kept in memory, in `Vocabulary`.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

from xmc_jax.data.formats.source import Place

_SEPARATORS = ("|", ";", "\t", ",")
_ENOUGH = 1000  # letters of a cell that are used to guess
_ROW = re.compile(r"-?[0-9]{1,18}")
_NUMBERS = re.compile(r"\s*\d+(\s+\d+)*\s*")


def guess_separator(cells: Iterable[object]) -> str:
  """Returns the separator that most cells contain; '' if each cell is one label."""
  texts = [cell[:_ENOUGH] for cell in cells if _is_plain(cell)]
  if texts and all(_NUMBERS.fullmatch(text) or not text.strip() for text in texts):
    return " "
  found = Counter(mark for text in texts for mark in _SEPARATORS if mark in text)
  return max(_SEPARATORS, key=lambda mark: found[mark]) if found else ""


def _is_plain(cell: object) -> TypeGuard[str]:
  """Returns whether a cell is a text to split, not a list."""
  return isinstance(cell, str) and not cell.lstrip().startswith("[")


def split_cell(cell: object, separator: str, place: Place, row: int) -> list[str | int]:
  """Returns the labels of one cell; None and an empty text have no labels."""
  if cell is None or cell != cell:  # data frames store a missing cell as NaN
    return []
  if isinstance(cell, str) and cell.lstrip().startswith("["):
    try:
      cell = json.loads(cell)
    except (ValueError, RecursionError):
      raise place.refuse(row, "a JSON list of labels", cell) from None
  if isinstance(cell, str):
    parts = cell.split(separator) if separator else [cell]
    return [part.strip() for part in parts if part.strip()]
  values: list[Any] = cell if isinstance(cell, list) else [cell]
  for value in values:
    if type(value) not in (str, int):
      raise place.refuse(row, "labels that are texts or whole numbers", value)
  return values


class SplitTally:
  """Counts split cells, so that the notice about the separator is correct.

  Attributes:
    rows: the cells counted so far.
  """

  def __init__(self):
    self.rows = 0
    self._split = 0
    self._has_texts = self._has_spaces = self._has_lists = False

  def add(self, cell: object, labels: list[str | int]) -> None:
    """Counts a cell and the labels that it was split into."""
    self.rows += 1
    if not labels:
      return
    if not _is_plain(cell):
      self._has_lists = True
      return
    self._has_texts = True
    self._split += len(labels) > 1
    self._has_spaces = self._has_spaces or len(cell.split()) > 1

  def notice(self, separator: str, is_given: bool) -> str:
    """Returns the notice about the separator; '' if there is nothing to report."""
    change = "(change with --config.data.label_separator)"
    if self._split:
      rows = f"{self._split:,} of {self.rows:,} rows"
      return "" if is_given else f"labels split at {separator!r} in {rows} {change}"
    if is_given:
      return f"no row has labels to split at {separator!r} {change}" if self._has_texts else ""
    # Cells of one word need no notice, and neither do lists.
    return f"each cell is one label {change}" if self._has_spaces and not self._has_lists else ""


class Vocabulary:
  """Maps labels to ids: rows of a label file or, without one, numbers in order of appearance.

  Attributes:
    texts: the label texts, by id.
  """

  def __init__(
    self,
    texts: list[str] | None = None,
    keys: Sequence[str] = (),
    file_name: str = "",
    numbers_are_rows: bool = False,
  ):
    """Takes the labels of a file; without any, labels are collected by `add`.

    Args:
      texts: their texts.
      keys: what cells call them, in the same order.
      file_name: the file, for messages.
      numbers_are_rows: whether a number that is no key is a row of the file.
    """
    self.texts = [] if texts is None else texts
    self._grows = texts is None
    self._rows_are_ids = numbers_are_rows
    self._file_name = file_name
    self._ids: dict[str, int] = {}
    for at, key in enumerate(keys):
      self._ids.setdefault(key, at)

  def __contains__(self, key: object) -> bool:
    return key in self._ids

  def add(self, labels: Iterable[str | int]) -> None:
    """Adds labels not seen before, unless a label file lists all labels."""
    if self._grows:
      for label in map(str, labels):
        if self._ids.setdefault(label, len(self.texts)) == len(self.texts):
          self.texts.append(label)

  def id_of(self, label: str | int, place: Place, row: int) -> int:
    """Returns the id of a label; if the label file has only texts, a whole number is itself an id."""
    known = None if self._rows_are_ids and isinstance(label, int) else self._ids.get(str(label))
    if known is not None:
      return known
    if self._rows_are_ids and _ROW.fullmatch(str(label)):
      if not 0 <= int(label) < len(self.texts):
        raise place.refuse(row, f"an id in [0, {len(self.texts)})", label)
      return int(label)
    raise place.refuse(row, f"a label of {self._file_name}", label)
