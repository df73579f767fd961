"""Raw text of the XMC repository: `trn.json`, `tst.json`, `lbl.json`, one JSON object per line."""

from collections.abc import Iterator
from pathlib import Path

from xmc_jax.data.formats import label_tables
from xmc_jax.data.formats.json_records import joined_text, objects
from xmc_jax.data.formats.lines import find, need
from xmc_jax.data.formats.source import KeyedTexts, Options, Pairs, Place, Rows

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
    "labels": lambda: _labels(labels, options, notices),
    "splits": {
      "train": lambda num_labels: _points(train, options, notices),
      "test": lambda num_labels: _points(test, options, notices),
    },
  }


def _labels(path: Path, options: Options, notices: list[str]) -> Iterator[KeyedTexts]:
  """Yields the labels, whose keys are their `uid`; without keys if the first label has none."""
  setting = "label_text" if options.label_text else "text"
  names = tuple(getattr(options, setting).split("+"))
  if options.label_parent:
    yield from label_tables.chunks(path, notices, options._replace(label_text="+".join(names)))
    return
  has_uids = None
  for place, records in objects(path, notices, options):
    if has_uids is None:
      has_uids = "uid" in records[0]
      # `content` is part of the layout, and often empty.
      have = [name for name in records[0] if name != "content"]
      notices += label_tables.unread_notices(path, have, names, options)
    texts = [joined_text(record, names, place, row, setting) for row, record in enumerate(records)]
    yield KeyedTexts(texts, [str(record.get("uid", "")) for record in records] if has_uids else None)


def _points(path: Path, options: Options, notices: list[str]) -> Iterator[Rows]:
  names = tuple(options.text.split("+"))
  for place, records in objects(path, notices, options):
    texts = [joined_text(record, names, place, row) for row, record in enumerate(records)]
    yield Rows(texts, _targets(records, place))


def _targets(records: list[dict], place: Place) -> Pairs:
  ids, values = [], []
  for row, record in enumerate(records):
    ids.append(_numbers(record.get("target_ind"), (int,), "target_ind", place, row))
    # Without relevances, every target has relevance 1.
    relevance = record.get("target_rel")
    if relevance is None:
      relevance = [1.0] * len(ids[-1])
    values.append(_numbers(relevance, (int, float), "target_rel", place, row))
    if len(relevance) != len(ids[-1]):
      expected = f"as many numbers in 'target_rel' as in 'target_ind' ({len(ids[-1])})"
      raise place.refuse(row, expected, f"{len(relevance)}")
  return Pairs.of_lists(ids, values, place)


def _numbers(values: object, kinds: tuple, key: str, place: Place, row: int) -> list:
  what = "whole numbers" if kinds == (int,) else "numbers"
  if not isinstance(values, list):
    raise place.refuse(row, f"a list of {what} under the key {key!r}", values)
  for value in values:
    # `type`, not `isinstance`: true and false are not numbers here.
    if type(value) not in kinds or abs(value) >= 2**63:
      raise place.refuse(row, f"{what} in {key!r}", value)
  return values
