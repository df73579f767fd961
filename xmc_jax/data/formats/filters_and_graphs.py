"""Files beside a data set: filters, the pairs that count neither as hit nor as miss, and metadata graphs."""

import re
from collections import Counter
from pathlib import Path

import numpy as np

from xmc_jax.data.formats.lines import Lines, anywhere, find
from xmc_jax.data.formats.source import GraphFiles, Source, refusal
from xmc_jax.errors import DataError

FILTERS = {
  "train": ("filter_labels_train.txt", "trn_filter_labels.txt"),
  "test": ("filter_labels_test.txt", "tst_filter_labels.txt"),
}
_PAIR = re.compile(rb"\s*([-+]?\d{1,18})\s+([-+]?\d{1,18})\s*")
_ANCHORS = re.compile(r"(?P<name>.+)_anchors\.txt(\.gz)?")
_EDGES = re.compile(r"(?P<name>.+)_(?P<side>trn|lbl)_X_Y\.(txt|npz)(\.gz)?")


def filter_of(
  source: Source, split: str, texts: np.ndarray, label_texts: np.ndarray, tally: Counter
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the pairs of a split's filter as `read_filter` does; without a file perhaps those of equal texts.

  `texts` and `label_texts` are `[N]` and `[L]` int64 hashes.
  """
  path = source.filters[split]
  if path or not source.options.filter_equal_texts:
    return read_filter(path, (len(texts), len(label_texts)), tally, source.notices)
  order = np.argsort(label_texts, kind="stable")
  known = label_texts[order]
  first, last = (np.searchsorted(known, texts, side) for side in ("left", "right"))
  counts = last - first
  places = np.repeat(first - counts.cumsum() + counts, counts) + np.arange(counts.sum())
  if len(texts):
    source.notices.append(
      f"no filter file of {split}: {len(places):,} pairs of a point and a label with the same text are left "
      "out (change with --config.data.filter_equal_texts)"
    )
  return np.repeat(np.arange(len(texts)), counts), order[places]


def read_filter(
  path: Path | None, shape: tuple[int, int], tally: Counter, notices: list[str]
) -> tuple[np.ndarray, np.ndarray]:
  """Reads the pairs of a filter file, sorted and distinct: `[n]` int64 rows and labels, below `shape`.

  None and an empty file give no pairs. `filter_duplicates` of the tally counts those that are there before.
  """
  blocks = [np.zeros(0, np.int64)]
  if path is not None:
    with Lines(path, notices) as lines:
      while block := lines.take():
        blocks.append(_keys(block, path, lines.taken - len(block) + 1, shape))
  distinct = np.unique(np.concatenate(blocks))
  tally["filter_duplicates"] += sum(map(len, blocks)) - len(distinct)
  return np.divmod(distinct, max(shape[1], 1))


def _keys(lines: list[bytes], path: Path, first: int, shape: tuple[int, int]) -> np.ndarray:
  """Returns `[n]` int64, a number for each pair of these lines."""
  keys = []
  for number, line in enumerate(lines, first):
    if not line.strip():
      continue
    if not (pair := _PAIR.fullmatch(line)):
      raise refusal(path, number, 'two whole numbers, "row label"', line)
    row, label = int(pair[1]), int(pair[2])
    for value, num, what in ((row, shape[0], "a row"), (label, shape[1], "a label")):
      if not 0 <= value < num:
        raise refusal(path, number, f"{what} in [0, {num})", line)
    keys.append(row * shape[1] + label)
  return np.array(keys, np.int64)


def find_graphs(folder: Path, notices: list[str]) -> tuple[GraphFiles, ...]:
  """Finds a folder's graphs: `NAME_{trn,lbl}_X_Y.{txt,npz}` with `NAME_anchors.txt` or `NAME.raw.txt`.

  Adds a notice for each graph that is left out because its anchors are missing.
  """
  edges: dict[str, dict[str, Path]] = {}
  alone: dict[str, Path] = {}
  for path in sorted(folder.iterdir()):
    if match := _EDGES.fullmatch(path.name):
      sides = edges.setdefault(match["name"], {})
      if match["side"] in sides:
        raise DataError(f"{folder}: {sides[match['side']].name} and {path.name} say the same; remove one")
      sides[match["side"]] = path
    elif match := _ANCHORS.fullmatch(path.name):
      alone[match["name"]] = path
  if missing := sorted(alone.keys() - edges.keys()):
    links = f"{missing[0]}_trn_X_Y.txt or {missing[0]}_lbl_X_Y.txt"
    raise DataError(f"{alone[missing[0]]}: {links}, its links, are missing beside it")
  graphs = []
  for name, sides in edges.items():
    names = (f"{name}_anchors.txt", f"{name}.raw.txt")
    if anchors := find(folder, *anywhere(*names)):
      graphs.append(GraphFiles(name, anchors, sides.get("trn"), sides.get("lbl")))
    else:
      beside = next(iter(sides.values())).name
      notices.append(f"not read: {beside}, as {' or '.join(names)} (or .gz), the anchors' texts, is missing")
  return tuple(graphs)
