"""Files with one JSON object a line, and the text of such a record."""

import json
from collections.abc import Iterator
from pathlib import Path

from xmc_jax.data.formats.lines import Lines
from xmc_jax.data.formats.source import DEFAULTS, Options, Place


def objects(
  path: Path, notices: list[str], options: Options = DEFAULTS
) -> Iterator[tuple[Place, list[dict]]]:
  """Yields the records of a file with one JSON object per line; empty lines are skipped."""
  with Lines(path, notices, options) as lines:
    for first, texts in lines.chunks():
      place = Place(path, [first + offset for offset, text in enumerate(texts) if text.strip()])
      if place.numbers:
        yield place, [_object(text, place, row) for row, text in enumerate(filter(str.strip, texts))]


def joined_text(record: dict, names: tuple[str, ...], place: Place, row: int, setting: str = "text") -> str:
  """Returns the record's text: these fields, joined by a space; numbers count as texts, null as empty.

  Args:
    record: one row.
    names: its fields.
    place: where the rows come from.
    row: which of them it is.
    setting: the key of config.data that chooses the fields, for the message about a missing one.

  Raises:
    DataError: a field is missing, or is no text.
  """
  parts = []
  for name in names:
    value = record.get(name, record)
    text = text_of(value)
    if text is None:
      expected = f"a text under the key {name!r}"
      if value is record:
        expected += f" (change with --config.data.{setting}=NAME)"
        value = f"keys {', '.join(record)}"
      raise place.refuse(row, expected, value)
    parts.append(text)
  return " ".join(filter(None, parts))


def text_of(value: object) -> str | None:
  """Returns a text, or a number in digits ('7' for 7.0); '' for null and NaN, None for anything else."""
  if value is None or value != value:
    return ""
  if isinstance(value, int | float) and not isinstance(value, bool):
    return str(int(value)) if value % 1 == 0 else str(value)
  return value if isinstance(value, str) else None


def _object(text: str, place: Place, row: int) -> dict:
  try:
    record = json.loads(text)
  except (ValueError, RecursionError):
    record = None
  if not isinstance(record, dict):
    raise place.refuse(row, "one JSON object", text)
  return record
