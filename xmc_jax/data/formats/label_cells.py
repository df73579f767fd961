"""Label cells of tables: lists of names or ids, strings with a separator, or rows of 0 and 1."""

import ast
import json
import re
import warnings
from collections.abc import Container, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import NamedTuple, TypeGuard

from xmc_jax.data.formats.source import Place, excerpt

_SEPARATORS = ("|", ";", "\t", ",")
_ANGLES = "><"  # between the labels of <c++><.net>
_BITS = {0: 0, 1: 1, "0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}
_NUMBER, _URI = r"\d+(\.0)?", r"<?https?://[^\s|;,<>]+>?"
# What every cell of a column must match for a guess.
_PATTERNS = {
  "keys": re.compile(rf"({_NUMBER}|{_URI})(\s+({_NUMBER}|{_URI}))*"),
  "angles": re.compile(r"(<[^<>\s]+>)+"),
  "numbers": re.compile(rf"{_NUMBER}([\s|;,]+{_NUMBER})*"),
}
_BRACKETED_URI = re.compile(r"<https?://[^\s<>]+>")
# An item of a list as Python or NumPy prints it.
_ITEM = r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s,'"\[\]]+)(?:\s*,\s*|\s+|$)"""
_JOINT = re.compile(r"[\s|;,]")
_SAMPLE = 1000  # cells, and letters of each
ENOUGH_KNOWN = 0.5  # share of labels that a label file has
_FEW_USES, _ENOUGH_ROWS = 1.5, 20  # a label's uses on average, and rows, for a note
_CHANGE = "(change with --config.data.label_separator)"


class CellFormat(NamedTuple):
  """Says how the label cells of a table are written."""

  separator: str  # what is between the labels of a cell; '' if each is one label
  num_columns: int = 0  # how many numbers, 0 or 1, each cell consists of; 0 if cells hold names or ids
  is_numeric: bool = False  # whether all labels are numbers, which data frames with gaps write as '7.0'

  def labels(self, cell: object, place: Place, row: int) -> list[str | int]:
    """Returns the labels of one cell, none of an empty one; refuses what is neither text nor whole number."""
    if self.num_columns:
      return [at for at, bit in enumerate(_bits(cell)) if bit]
    if _is_plain(cell):
      return [*self.parts(cell)]
    values = _values(cell)
    if values is None:
      raise place.refuse(row, "a JSON list of labels", cell)
    labels: list[str | int] = []
    for value in values:
      if isinstance(value, str):
        labels.append(value.strip())
      elif type(value) is int or (isinstance(value, float) and value.is_integer()):
        labels.append(int(value))
      elif not _is_missing(value):
        raise place.refuse(row, "labels that are texts or whole numbers", value)
    return [label for label in labels if label != ""]

  def parts(self, cell: str) -> list[str]:
    """Returns the labels of a cell that is a text."""
    if self.separator == _ANGLES:
      cell = cell.strip().removeprefix("<").removesuffix(">")
    split = cell.split(None if self.separator == " " else self.separator) if self.separator else [cell]
    parts = [part.strip() for part in split]
    parts = [part[1:-1] if _BRACKETED_URI.fullmatch(part) else part for part in parts if part]
    return [part.removesuffix(".0") if self.is_numeric else part for part in parts]


class CellSurvey:
  """Tells the format of label cells."""

  def __init__(self, separator: str, cells: Sequence[object]):
    """Looks at all cells of all tables, as the first thousands may be unlike the rest.

    `separator` is the user's; '' guesses it.
    """
    self._num_rows = len(cells)
    self._given = "\t" if separator == r"\t" else separator
    filled = [
      cell for cell in cells if not (_is_missing(cell) or (isinstance(cell, str) and not cell.strip()))
    ]
    texts = [cell.strip() for cell in filled if _is_plain(cell)]
    self._cells = filled[:_SAMPLE]
    self._has_texts, self._has_lists = bool(texts), len(texts) < len(filled)
    joined = (text for text in texts if len(text) < _SAMPLE and _JOINT.search(text))
    self._joined = list(islice(joined, _SAMPLE))  # some that hold a separator or several words
    self._num_split = {  # cells that have each separator between labels
      mark: sum(mark in text.strip(mark) for text in texts)
      for mark in (*_SEPARATORS, _ANGLES, " ", separator or " ")
    }
    self._patterns = {name for name, pattern in _PATTERNS.items() if all(map(pattern.fullmatch, texts))}
    self._rows_of_bits = _rows_of_bits(filled)

  def samples(self) -> list[set[str]]:
    """Returns the labels of some cells twice: as far as the format is known, and split at spaces."""
    if (found := self.format()).num_columns:
      return []
    samples: list[set[str]] = []
    for way in (found, CellFormat(" ")):
      labels = ((way.parts(cell) if _is_plain(cell) else _values(cell)) or [] for cell in self._cells)
      samples.append({str(label).removesuffix(".0") for label in chain.from_iterable(labels)})
    return samples

  def format(self, known: Container[str] = ()) -> CellFormat:
    """Returns the format of all cells; labels that are known tell what is between."""
    rows = self._rows_of_bits
    # Ids do not repeat in a row, and are not in another order in the next.
    if (len(rows) > 1 and not self._given) or any(len(set(row)) < len(row) for row in rows):
      return CellFormat(self._given, len(rows[0]))
    return CellFormat(self._separator(known), is_numeric="numbers" in self._patterns)

  def _separator(self, known: Container[str]) -> str:
    if self._given or not self._has_texts:
      return self._given
    for pattern, mark in (("keys", " "), ("angles", _ANGLES)):
      if pattern in self._patterns and self._num_split[mark]:
        return mark

    def share_known(mark: str) -> float:
      parts = [*chain.from_iterable(map(CellFormat(mark).parts, self._joined))]
      return sum(part in known for part in parts) / max(1, len(parts))

    best = max(("", " ", *_SEPARATORS), key=share_known)
    if share_known(best) >= ENOUGH_KNOWN:
      return best
    best = max(_SEPARATORS, key=lambda mark: self._num_split[mark])
    return best if self._num_split[best] else ""

  def separator(self, found: CellFormat) -> str:
    """Returns the separator if cells were split at it, or a line break if they could have been; else ''."""
    if found.num_columns or self._num_split.get(found.separator):
      return found.separator
    return "" if found.separator or not any(map(self._num_split.get, _SEPARATORS)) else "\n"

  def notices(self, found: CellFormat, texts: Sequence[str], num_uses: int) -> list[str]:
    """Returns what was guessed, and what makes the guess doubtful of labels with these texts and uses."""
    if found.num_columns:
      names = "; labels.txt may give their names, one a line" if texts else ""
      return [f"labels are rows of {found.num_columns:,} numbers, 0 or 1, each the column of a label{names}"]
    mark, num_split = found.separator, self._num_split.get(found.separator, 0)
    if self._given:
      is_unseen = self._has_texts and not num_split and mark != "\n"  # each cell is one label
      return [f"no row has labels to split at {mark!r} {_CHANGE}"] if is_unseen else []
    notices = []
    if num_split:
      notices.append(f"labels split at {mark!r} in {num_split:,} of {self._num_rows:,} rows {_CHANGE}")
    elif self._joined and not self._has_lists:  # cells of one word need no notice, and neither do lists
      notices.append(f"each cell is one label {_CHANGE}")
    return [*notices, *self._doubts(mark, texts, num_uses)] if self._has_texts else notices

  def _doubts(self, separator: str, texts: Sequence[str], num_uses: int) -> list[str]:
    holding = {mark: [text for text in texts if mark in text] for mark in _SEPARATORS if mark != separator}
    mark, labels = max(holding.items(), key=lambda item: len(item[1]))
    doubts = []
    if labels:
      doubts.append(
        f"{len(labels):,} labels hold {mark!r}, such as {excerpt(labels[0])}; if it separates labels, set "
        f"--config.data.label_separator={mark!r}"
      )
    if self._num_rows >= _ENOUGH_ROWS and num_uses < _FEW_USES * len(texts):
      uses = num_uses / len(texts)
      doubts.append(f"a label is used {uses:.1f} times on average: do cells hold several? {_CHANGE}")
    return doubts


def cell_of(record: dict, columns: Sequence[str], place: Place, row: int) -> object:
  """Returns the cell of labels of a record; of several columns of 0 and 1, the names of those with 1."""
  if len(columns) == 1:
    return record.get(columns[0])
  bits = [_bit(record.get(name)) for name in columns]
  if None in bits:
    name = columns[bits.index(None)]
    raise place.refuse(row, f"0 or 1 in column {excerpt(name)}", record.get(name))
  return [name for name, bit in zip(columns, bits) if bit]


def columns_of_bits(rows: list[dict]) -> tuple[str, ...]:
  """Returns the columns that hold 0, 1 or nothing in each of these records."""
  names = dict.fromkeys(chain.from_iterable(rows))
  return tuple(
    name for name in names if name.strip() and all(_bit(record.get(name)) is not None for record in rows)
  )


def _bit(value: object) -> int | None:
  """Returns 0 or 1; 0 of a missing value, None of any other."""
  if _is_missing(value) or value == "":
    return 0
  if isinstance(value, str):
    return _BITS.get(value.lower())
  return _BITS.get(value) if isinstance(value, int | float) else None


def _is_missing(value: object) -> bool:
  return value is None or value != value  # data frames store a missing cell as NaN


def _is_plain(cell: object) -> TypeGuard[str]:
  """Returns whether a cell is a text to split, not a list."""
  return isinstance(cell, str) and not cell.lstrip().startswith("[")


def _values(cell: object) -> list | None:
  """Returns the items of a cell that is no plain text: a value, or a list; None for a damaged list."""
  if not isinstance(cell, str):
    return cell if isinstance(cell, list) else [cell]
  with suppress(ValueError, RecursionError):
    return json.loads(cell)
  # Data frames write lists as Python or NumPy prints them: ['a', 'b'], ['a' 'b'].
  text = cell.strip()
  body = text[1:-1].strip() if text.endswith("]") else "["
  if re.fullmatch(f"(?:{_ITEM})*+", body, re.DOTALL):
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
      return list(map(_literal, re.findall(_ITEM, body, re.DOTALL)))
  return None


def _literal(item: str) -> object:
  if item[0] in "'\"" and "\\" not in item:
    return item[1:-1]
  with warnings.catch_warnings():
    warnings.simplefilter("error")  # of an unknown escape
    return None if item == "nan" else ast.literal_eval(item)


def _bits(cell: object) -> list[int]:
  """Returns the numbers of a cell that consists of 0 and 1; none of any other cell."""
  values = re.split(r"[\s|;,]+", cell.strip()) if _is_plain(cell) else _values(cell) or []
  bits = [bit for value in values if value not in (None, "") and (bit := _bit(value)) is not None]
  return bits if len(bits) == len(values) else []


def _rows_of_bits(cells: list[object]) -> list[tuple[int, ...]]:
  """Returns one or two different rows of 0 and 1, if all cells are such rows of one length; else none."""
  rows: set[tuple[int, ...]] = set()
  for cell in cells:
    row = tuple(_bits(cell))
    if len(row) < 2 or any(len(other) != len(row) for other in rows):
      return []
    if len(rows) < 2:
      rows.add(row)
  return list(rows)
