"""JSON files: an object a line, or an array of objects; and the text of such a record."""

import codecs
import json
from collections.abc import Iterator
from pathlib import Path

from xmc_jax.data.formats.lines import CHUNK_BYTES, CHUNK_ROWS, Lines, expecting, open_bytes, reading
from xmc_jax.data.formats.source import DEFAULTS, Options, Place


def objects(
  path: Path, notices: list[str], options: Options = DEFAULTS
) -> Iterator[tuple[Place, list[dict]]]:
  """Yields the records of a file with one JSON object per line; empty lines are skipped."""
  with Lines(path, notices, options) as lines:
    for first, texts in lines.chunks():
      place = Place(path, [first + offset for offset, text in enumerate(texts) if text.strip()])
      records = []
      for row, text in enumerate(filter(str.strip, texts)):
        if (record := parsed(text)) is None:
          raise place.refuse(row, "one JSON object", text)
        records.append(record)
      if records:
        yield place, records


def joined_text(record: dict, names: tuple[str, ...], place: Place, row: int, setting: str = "text") -> str:
  """Returns the record's text: these fields, joined by a space; numbers count as texts, null as empty.

  Raises:
    DataError: a field is missing, or is no text; `setting` is the key of config.data that chooses the fields.
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


def is_array(path: Path) -> bool:
  """Returns whether a JSON file is an array."""
  with reading(path, 0), open_bytes(path) as file:
    return file.peek(CHUNK_BYTES).lstrip(codecs.BOM_UTF8 + codecs.BOM_UTF16 + b"\0 \t\r\n").startswith(b"[")


def items(path: Path, options: Options) -> Iterator[tuple[Place, list[dict]]]:
  """Yields the objects of an array, which is in memory as a whole."""
  with expecting(path, "a JSON array of objects"):
    with reading(path), open_bytes(path) as file:
      content = file.read()
    found = json.loads(content.decode(options.encoding) if options.encoding else content)
  for first in range(0, len(found), CHUNK_ROWS):
    chunk = found[first : first + CHUNK_ROWS]
    place = Place(path, range(first + 1, first + len(chunk) + 1), "item")
    for row, item in enumerate(chunk):
      if not isinstance(item, dict):
        raise place.refuse(row, "one JSON object", item)
    yield place, chunk


def parsed(text: str | bytes) -> dict | None:
  """Returns a JSON object; None for any other text."""
  try:
    record = json.loads(text)
  except (ValueError, RecursionError):
    return None
  return record if isinstance(record, dict) else None
