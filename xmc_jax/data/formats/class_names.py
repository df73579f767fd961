"""Names of classes in Hugging Face's metadata: what the numbers of a `ClassLabel` column stand for."""

import json
from pathlib import Path
from typing import Any

from xmc_jax.data.formats.lines import reading
from xmc_jax.errors import DataError

_LISTS = ("Sequence", "List", "LargeList")
_LARGEST = 1 << 26  # bytes: a million names of ordinary length


def read_json(path: Path) -> dict:
  """Returns the JSON object of a small file of a Hugging Face folder.

  Raises:
    DataError: there is no such file, or it holds something else.
  """
  with reading(path), open(path, "rb") as file:
    content = file.read(_LARGEST + 1)
  try:
    found = json.loads(content) if len(content) <= _LARGEST else None
  except (ValueError, RecursionError):
    found = None
  if not isinstance(found, dict):
    raise DataError(f"{path}: expected one JSON object, as `datasets` writes it")
  return found


def names_in_metadata(metadata: bytes, column: str) -> list[str]:
  """Returns the names of a column's classes in a schema's metadata; none if it has no legible ones."""
  try:
    return names_of(json.loads(metadata)["info"]["features"], column)
  except (ValueError, RecursionError, TypeError, KeyError):
    return []


def names_of(features: Any, column: str) -> list[str]:
  """Returns the names of a column's classes, in the order of their numbers; none if it has no classes.

  Args:
    features: `Features` of a data set as JSON: {column: {"_type": ...}}.
    column: a column of a class, or of a list of classes, for each row.
  """
  feature = features.get(column) if isinstance(features, dict) else None
  if isinstance(feature, list) and len(feature) == 1:  # how lists were written until 2020
    feature = feature[0]
  elif isinstance(feature, dict) and feature.get("_type") in _LISTS:
    feature = feature.get("feature")
  if not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
    return []
  names: Any = feature.get("names")
  if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
    return []
  return names if len(set(names)) == len(names) else []
