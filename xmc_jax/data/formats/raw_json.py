"""Raw text of the XMC repository: `trn.json`, `tst.json`, `lbl.json`, one JSON object per line."""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from xmc_jax.data.formats.lines import Lines, find, need
from xmc_jax.data.formats.source import Options, Pairs, Place, Rows, refusal

NAME = "raw_json"
LOOKS_FOR = "trn.json, tst.json, lbl.json"


def recognise(folder: Path, options: Options, notices: list[str]) -> dict | None:
  """Returns the `Source` fields of this layout, or None if the folder does not have its files."""
  train = find(folder, "trn.json")
  if train is None:
    return None
  test, labels = (need(folder, name, beside=train) for name in ("tst.json", "lbl.json"))
  return {
    "files": (train, test, labels),
    "labels_file": labels,
    "labels": lambda: _labels(labels, options.text, notices),
    "splits": {
      "train": lambda num_labels: _points(train, options.text, notices),
      "test": lambda num_labels: _points(test, options.text, notices),
    },
  }


def objects(path: Path, notices: list[str]) -> Iterator[tuple[Place, list[dict]]]:
  """Yields the records of a file with one JSON object per line; empty lines are allowed only at its end."""
  blank = 0  # number of the first empty line after the last record; 0 if there is none
  with Lines(path, notices) as lines:
    for first, texts in lines.chunks():
      end = first + len(texts)
      while texts and not texts[-1].strip():
        texts.pop()
      if not texts:
        blank = blank or first
        continue
      if blank:
        raise refusal(path, blank, "one JSON object", "")
      after = first + len(texts)
      place = Place(path, range(first, after))
      yield place, [_object(text, place, row) for row, text in enumerate(texts)]
      blank = after if after < end else 0


def joined_text(record: dict, names: tuple[str, ...], place: Place, row: int) -> str:
  """Returns the record's text: these fields, joined by a space; null counts as empty."""
  parts = []
  for name in names:
    value = record.get(name, record)
    if value is not None and not isinstance(value, str):
      expected = f"a text under the key {name!r}"
      if value is record:
        expected += " (change with --config.data.text=NAME)"
        value = f"keys {', '.join(record)}"
      raise place.refuse(row, expected, value)
    parts.append(value or "")
  return " ".join(filter(None, parts))


def _object(text: str, place: Place, row: int) -> dict:
  try:
    record = json.loads(text)
  except (ValueError, RecursionError):
    record = None
  if not isinstance(record, dict):
    raise place.refuse(row, "one JSON object", text)
  return record


def _labels(path: Path, text: str, notices: list[str]) -> Iterator[list[str]]:
  names = tuple(text.split("+"))
  for place, records in objects(path, notices):
    yield [joined_text(record, names, place, row) for row, record in enumerate(records)]


def _points(path: Path, text: str, notices: list[str]) -> Iterator[Rows]:
  names = tuple(text.split("+"))
  for place, records in objects(path, notices):
    texts = [joined_text(record, names, place, row) for row, record in enumerate(records)]
    yield Rows(texts, _targets(records, place))


def _targets(records: list[dict], place: Place) -> Pairs:
  ids, values = [], []
  for row, record in enumerate(records):
    ids.append(_numbers(record.get("target_ind"), (int,), "target_ind", place, row))
    # Without relevances, every target has relevance 1.
    relevance = record.get("target_rel")
    if relevance is None:
      values.append([1.0] * len(ids[-1]))
    else:
      values.append(_numbers(relevance, (int, float), "target_rel", place, row))
    if len(values[-1]) != len(ids[-1]):
      expected = f"as many numbers in 'target_rel' as in 'target_ind' ({len(ids[-1])})"
      raise place.refuse(row, expected, f"{len(values[-1])}")
  counts = np.fromiter(map(len, ids), np.int64, len(ids))
  flat = np.fromiter(chain.from_iterable(ids), np.int64, counts.sum())
  return Pairs(counts, flat, np.fromiter(chain.from_iterable(values), np.float32, counts.sum()), place)


def _numbers(values: object, kinds: tuple, key: str, place: Place, row: int) -> list:
  what = "whole numbers" if kinds == (int,) else "numbers"
  if not isinstance(values, list):
    raise place.refuse(row, f"a list of {what} under the key {key!r}", values)
  for value in values:
    # `type`, not `isinstance`: true and false are not numbers here.
    if type(value) not in kinds or abs(value) >= 2**63:
      raise place.refuse(row, f"{what} in {key!r}", value)
  return values
