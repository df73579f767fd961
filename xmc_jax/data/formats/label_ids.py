"""Ids of labels in tables: rows of a label file or, without one, numbers in order of appearance.

Only the distinct labels and their texts are kept in memory.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice

from xmc_jax.data.formats.source import Place, excerpt
from xmc_jax.errors import DataError

_NUMBER = re.compile(r"-?[0-9]{1,18}")
_SHOWN = 3
_FEW = 0.1  # share of uses by labels that a vocabulary may lack


class Vocabulary:
  """Maps labels to ids.

  Attributes:
    texts: the label texts, by id.
    num_uses: how often labels were added.
    has_rows: whether one of them was a number that means a row.
  """

  def __init__(
    self,
    texts: list[str] | None = None,
    keys: Sequence[str] = (),
    file_name: str = "",
    numbers_are_rows: bool = False,
    unknown: str = "refuse",
    key_column: str = "",
    cell_names: Sequence[Sequence[str]] = (),
  ):
    """Takes the labels of a file; without any, labels are collected by `add`.

    Args:
      texts: their texts.
      keys: what cells may call them besides their texts, in the same order.
      file_name, key_column: the file, and its column of keys, for messages.
      numbers_are_rows: whether a number that is no key is a row of the file.
      unknown: what becomes of labels that the file lacks: 'refuse', 'drop' or 'keep'; 'drop_few' drops them
        if they are few.
      cell_names: what cells may call each label instead of its text, the best name first.
    """
    self.texts = [] if texts is None else texts
    self.num_uses = 0
    self.has_rows = False
    self._num_rows = len(self.texts) if numbers_are_rows else 0
    self._file_name = file_name
    self._key_column = key_column
    self._policy = "keep" if texts is None else unknown
    self._unknown: Counter[str] = Counter()
    self._first: tuple[Place, int] | None = None
    names = {key.strip() for key in keys}

    def called() -> Iterator[tuple[int, str]]:
      others = ((at, name) for at, of_label in enumerate(cell_names) for name in of_label)
      return others if cell_names else enumerate(self.texts)

    repeated = Counter(text.strip() for _, text in called())
    self._shared = {text for text, num in repeated.items() if num > 1 and text not in names}
    self._uses_of_shared: Counter[str] = Counter()
    self._ids: dict[str, int] = {}
    first = ((at, of_label[0]) for at, of_label in enumerate(cell_names))
    for at, key in chain(enumerate(keys), first, called()):
      self._ids.setdefault(key.strip(), at)
    for at, key in enumerate(keys):
      if key.endswith(".0") and key[:-2].isdigit():  # a number of a data frame with gaps
        self._ids.setdefault(key[:-2], at)

  def __contains__(self, key: object) -> bool:
    return key in self._ids

  def id_of(self, label: str | int) -> int | None:
    """Returns the id of a label; None if it has none."""
    is_number = self._num_rows and _NUMBER.fullmatch(str(label))
    is_row = bool(is_number) and 0 <= int(label) < self._num_rows
    known = self._ids.get(str(label))
    if is_row and (known is None or isinstance(label, int)):
      self.has_rows = True
      return int(label)
    return known

  def ids_of(self, labels: Sequence[str | int]) -> list[int]:
    """Returns the ids of these labels, without those that have none."""
    return [found for label in labels if (found := self.id_of(label)) is not None]

  def add(self, labels: Sequence[str | int], place: Place, row: int) -> list[int]:
    """Returns the ids of the labels of one cell; counts those that the label file lacks, or adds them."""
    self.num_uses += len(labels)
    for label in labels:
      if label in self._shared:
        self._uses_of_shared[str(label)] += 1
      if self.id_of(label) is not None and str(label) not in self._unknown:
        continue
      if self._file_name:
        self._unknown[str(label)] += 1
        self._first = self._first or (place, row)
      if self._policy == "keep" and self.id_of(label) is None:
        self._ids[str(label)] = len(self.texts)
        self.texts.append(str(label))
    return self.ids_of(labels)

  def notices(self) -> list[str]:
    """Returns what became of labels that the file lacks (or refuses them), and of texts of several labels."""
    shared = []
    if uses := self._uses_of_shared:
      such = f"{len(uses):,}, such as {excerpt(next(iter(uses)))}; uses: {uses.total():,}"
      shared = [f"{self._file_name}: texts of several labels: {such}; in cells, they mean the first"]
    if not self._first:
      return shared
    such = ", ".join(map(excerpt, islice(self._unknown, _SHOWN)))
    counts = f"unknown labels: {len(self._unknown):,}, such as {such}; uses: {self._unknown.total():,}"
    is_few = self._unknown.total() <= _FEW * self.num_uses
    if self._policy in ("drop", "keep") or (self._policy == "drop_few" and is_few):
      became = "added" if self._policy == "keep" else "left out"
      return [*shared, f"{self._file_name}: {counts}; {became}"]
    place, row = self._first
    label = next(iter(self._unknown))
    is_number = self._num_rows and _NUMBER.fullmatch(label)
    expected = f"an id in [0, {self._num_rows})" if is_number else f"a label of {self._file_name}"
    remedy = "--config.data.unknown_labels=drop leaves them out, keep adds them"
    if self._key_column:
      remedy += f"; keys are those of column {excerpt(self._key_column)}"
    raise DataError(f"{place.refuse(row, expected, label)} ({counts}; {remedy})")
