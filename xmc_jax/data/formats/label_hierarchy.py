"""Labels that have parents: the names of a label's ancestors come before its text, as in `animals > dogs`."""

from array import array

import numpy as np

from xmc_jax.data.formats.json_records import text_of
from xmc_jax.data.formats.source import Place, excerpt
from xmc_jax.errors import DataError

SEPARATOR = " > "
# Far more than an encoder reads. Bounds what a short file with a long chain of parents turns into.
LONGEST_PATH = 4096  # letters
# Of all joined texts together: a long chain may have many labels below its end.
MOST_LETTERS, MOST_TIMES = 1 << 24, 32  # the larger of the two; times the letters of all texts
_SHOWN = 4  # labels of a cycle


class Hierarchy:
  """Collects labels with the keys of their parents, and joins their texts once all are known."""

  def __init__(self, column: str):
    """Takes the column of parents, for messages; '' if labels have none."""
    self._column = column
    self._names: list[str] = []
    self._texts: list[str] = []
    self._parents: list[object] = []
    self._numbers = array("q")
    self._places: list[Place] = []

  def add(self, names: list[str], texts: list[str], parents: list[object], place: Place) -> None:
    """Adds some labels: the names that stand in a path, whole texts, and parents' keys (None: no parent)."""
    self._texts += texts
    if self._column:
      self._names += names
      self._parents += parents
      self._numbers.extend(place.numbers)
      self._places = [place]

  def joined_texts(self, keys: list[str]) -> list[str]:
    """Returns the text of each label behind the names of its ancestors, the topmost first.

    Args:
      keys: the key of each label; if two have the same, a child belongs to the first.

    Raises:
      DataError: a parent is no label, a label is its own ancestor, a path is longer than LONGEST_PATH, or all
        texts together become far longer than they were.
    """
    if not self._column:
      return self._texts
    ids: dict[str, int] = {}
    for at, key in enumerate(keys):
      ids.setdefault(key, at)
    parents = np.array([self._parent_of(at, ids) for at in range(len(keys))], np.int64)
    self._refuse_cycles(parents, keys)
    joined, letters = [], 0
    most = max(MOST_LETTERS, MOST_TIMES * sum(map(len, self._texts)))
    for at, text in enumerate(self._texts):
      joined.append(SEPARATOR.join([*self._ancestors(at, parents), text]))
      letters += len(joined[-1])
      if letters > most:
        raise self._refused(at, f"at most {most:,} letters of labels with their ancestors", joined[-1])
    return joined

  def _parent_of(self, at: int, ids: dict[str, int]) -> int:
    """Returns the id of a label's parent, -1 if it has none."""
    value = self._parents[at]
    if value is None or value != value or value == "":  # data frames store a missing cell as NaN
      return -1
    key = text_of(value) or ""  # data frames with gaps store a number as 7.0
    known = ids.get(key, ids.get(key.removesuffix(".0")))
    if known is None:
      expected = f"the key of another label, or nothing, in column {excerpt(self._column)}"
      raise self._refused(at, expected, value)
    return known

  def _refuse_cycles(self, parents: np.ndarray, keys: list[str]) -> None:
    walk_of = np.full(len(parents), -1)  # the label whose walk upwards came here first
    for start in range(len(parents)):
      at = start
      while at >= 0 and walk_of[at] < 0:
        walk_of[at] = start
        at = parents[at]
      if at >= 0 and walk_of[at] == start:
        cycle = [at]
        while (above := parents[cycle[-1]]) != at and len(cycle) < _SHOWN:
          cycle.append(above)
        path = SEPARATOR.join(keys[one] for one in [*cycle, above])
        raise self._refused(at, "a parent that is not below the label itself", path)

  def _ancestors(self, at: int, parents: np.ndarray) -> list[str]:
    names: list[str] = []
    length, above = 0, parents[at]
    while above >= 0:
      names.append(self._names[above])
      length += len(names[-1]) + len(SEPARATOR)
      if length > LONGEST_PATH:
        raise self._refused(at, f"a path of at most {LONGEST_PATH:,} letters of ancestors", names[0])
      above = parents[above]
    return names[::-1]

  def _refused(self, at: int, expected: str, found: object) -> DataError:
    return self._places[0]._replace(numbers=self._numbers).refuse(at, expected, found)
