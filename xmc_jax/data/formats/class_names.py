"""Names of classes in Hugging Face's metadata: what the numbers of a `ClassLabel` column stand for."""

import json
from pathlib import Path
from typing import Any

from xmc_jax.data.formats import arrow
from xmc_jax.data.formats.json_records import parsed
from xmc_jax.data.formats.lines import reading
from xmc_jax.data.formats.source import Place
from xmc_jax.data.formats.table_files import ARROW, SplitFiles, suffix
from xmc_jax.errors import DataError

_LISTS = ("Sequence", "List", "LargeList")
_UNLABELLED = -1  # how data sets of the hub mark a point whose label is not known


def read_json(path: Path) -> dict:
  """Returns the JSON object of a small file of a Hugging Face folder; refuses anything else."""
  with reading(path):
    record = parsed(path.read_bytes())
  if record is None:
    raise DataError(f"{path}: expected one JSON object, as `datasets` writes it")
  return record


def class_names(split: SplitFiles, column: str) -> dict[Path, list[str]]:
  """Returns the names of the classes in a column, for each of the tables that names them."""
  shared = _names_of(read_json(split.features).get("features"), column) if split.features else []
  names = {path: shared or _names_of(_features_of(path), column) for path in split.files}
  return {path: of_file for path, of_file in names.items() if of_file}


def named(labels: list[str | int], names: list[str], place: Place, row: int) -> list[str | int]:
  """Returns the labels of a cell by name, without -1; refuses a number that no class has."""
  by_name: list[str | int] = []
  for label in labels:
    if not isinstance(label, int):
      by_name.append(label)
    elif 0 <= label < len(names):
      by_name.append(names[label])
    elif label != _UNLABELLED:
      raise place.refuse(row, f"a class in [0, {len(names)}), or -1 for none", label)
  return by_name


def is_unlabelled(cell: object) -> bool:
  """Returns whether a cell has the number that stands for an unknown class."""
  return cell == _UNLABELLED or (isinstance(cell, list) and _UNLABELLED in cell)


def notices(names: list[str], label_file: str, is_used: bool, num_unlabelled: int) -> list[str]:
  """Returns what numbers of labels stand for, and how many rows have that of an unknown class."""
  where = f"the {len(names):,} class names in the tables' metadata"
  if not names or not is_used:
    return [f"{where} are not all in {label_file}, so labels are read as numbers"] if names else []
  meaning = f"{where}, as keys of {label_file}" if label_file else where
  unknown = f"rows whose label is -1, for unknown, count as rows without labels: {num_unlabelled:,}"
  return [f"numbers of labels stand for {meaning}", *([unknown] if num_unlabelled else [])]


def _features_of(path: Path) -> Any:
  """Returns the features that Hugging Face's libraries wrote into a table's schema, None if none."""
  metadata = arrow.schema(path).metadata if suffix(path) in ARROW else None
  try:
    return json.loads((metadata or {})[b"huggingface"])["info"]["features"]
  except (ValueError, RecursionError, TypeError, KeyError):
    return None


def _names_of(features: Any, column: str) -> list[str]:
  """Returns the names of a column's classes, in the order of their numbers; none if it has no classes."""
  try:
    feature = features[column]
    if isinstance(feature, list):  # how lists were written until 2020
      feature = feature[0]
    elif feature["_type"] in _LISTS:
      feature = feature["feature"]
    names = feature["names"] if feature["_type"] == "ClassLabel" else []
  except (TypeError, KeyError, IndexError):
    return []
  is_right = isinstance(names, list) and all(isinstance(name, str) for name in names)
  return names if is_right and len(set(names)) == len(names) else []
