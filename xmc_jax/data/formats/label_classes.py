"""Numbers of classes in label columns, which Hugging Face's metadata give names to."""

from collections.abc import Container, Iterable
from pathlib import Path

from xmc_jax.data.formats.class_names import names_in_metadata, names_of, read_json
from xmc_jax.data.formats.source import Place
from xmc_jax.data.formats.split_files import SplitFiles
from xmc_jax.data.formats.table_files import hub_metadata

_UNLABELLED = -1  # how data sets of the hub mark a point whose label is not known


class LabelClasses:
  """Turns the numbers of `ClassLabel` columns into the names of their classes.

  Attributes:
    names: the names of all tables, in the order of their numbers; empty if no table has any.
  """

  def __init__(self, splits: Iterable[tuple[SplitFiles, str]]):
    """Reads the names of the classes in the label column of each split."""
    self._of_file: dict[Path, list[str]] = {}
    self._label_file = ""
    self._is_ignored = False
    self._num_unlabelled = 0
    for split, column in splits:
      names = names_of(read_json(split.features).get("features"), column) if split.features else []
      is_shared = bool(names)
      last = b""
      for path in split.files:
        if not is_shared and (metadata := hub_metadata(path)) != last:  # shards have the same, mostly
          last = metadata
          names = names_in_metadata(metadata, column)
        if names:
          self._of_file[path] = names
    self.names = list(dict.fromkeys(name for names in self._lists() for name in names))

  def _lists(self) -> list[list[str]]:
    return list({id(names): names for names in self._of_file.values()}.values())

  def named(self, labels: list[str | int], place: Place, row: int) -> list[str | int]:
    """Returns the labels of a cell by name, without -1.

    Raises:
      DataError: a number that no class has.
    """
    names = self._of_file.get(place.path)
    if names is None or self._is_ignored:
      return labels
    found: list[str | int] = []
    for label in labels:
      if not isinstance(label, int):
        found.append(label)
      elif 0 <= label < len(names):
        found.append(names[label])
      elif label != _UNLABELLED:
        raise place.refuse(row, f"a class in [0, {len(names)}), or -1 for none", label)
    return found

  def count_unlabelled(self, path: Path, cell: object) -> None:
    """Counts a cell whose label is -1, for the notice."""
    if path in self._of_file:
      self._num_unlabelled += cell == _UNLABELLED or (isinstance(cell, list) and _UNLABELLED in cell)

  def match(self, label_file: str, keys: Container[str]) -> None:
    """Leaves numbers as they are from now on, unless every name is a key of this file of labels."""
    self._label_file = label_file
    self._is_ignored = not all(name in keys for name in self.names)

  def notices(self) -> list[str]:
    """Returns what was found, for the user."""
    if not self._of_file:
      return []
    where = f"the {len(self.names):,} class names in the tables' metadata"
    if self._is_ignored:
      return [f"{where} are not all in {self._label_file}, so labels are read as numbers"]
    found = f"{where}, as keys of {self._label_file}" if self._label_file else where
    unknown = f"rows whose label is -1, for unknown, count as rows without labels: {self._num_unlabelled:,}"
    return [f"numbers of labels stand for {found}", *([unknown] if self._num_unlabelled else [])]
