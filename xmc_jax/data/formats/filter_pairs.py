"""Filter files: "row label" pairs that count neither as a hit nor as a miss."""

from collections import Counter
from pathlib import Path

import numpy as np

from xmc_jax.data.formats.lines import Lines, find
from xmc_jax.data.formats.matrices import parse_numbers
from xmc_jax.data.formats.source import Source, refusal
from xmc_jax.errors import DataError

_NAMES = {
  "train": ("filter_labels_train.txt", "trn_filter_labels.txt"),
  "test": ("filter_labels_test.txt", "tst_filter_labels.txt"),
}
_MANY = 1 << 20  # pairs


def find_filters(folder: Path) -> dict[str, Path | None]:
  """Returns the filter file of each split, None if it has none."""
  return {split: find(folder, *names) for split, names in _NAMES.items()}


def filter_of(
  source: Source, split: str, texts: np.ndarray, label_texts: np.ndarray, tally: Counter
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the pairs of a split's filter as `read_filter` does; without a file perhaps those of equal texts.

  Args:
    source: its `options.filter_equal_texts` is used.
    split: 'train' or 'test'.
    texts, label_texts: `[N]` and `[L]` int64 hashes.
    tally: as for `read_filter`.
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
  """Reads the pairs of a filter file, sorted and distinct: `[n]` int64 rows and labels.

  Args:
    path: the file; None and an empty file give no pairs.
    shape: number of rows and of labels; ids must be below it.
    tally: `filter_duplicates` counts the pairs that the file has more than once.
    notices: as in `Source`.
  """
  distinct, later, num = np.zeros(0, np.int64), [], 0
  if path is not None:
    with Lines(path, notices) as lines:
      while block := lines.take():
        later.append(_keys(block, path, lines.taken - len(block) + 1, shape))
        num += len(later[-1])
        # Merging from time to time bounds the memory for a file that repeats the same pairs.
        if sum(map(len, later)) > max(len(distinct), _MANY):
          distinct, later = np.unique(np.concatenate([distinct, *later])), []
  distinct = np.unique(np.concatenate([distinct, *later]))
  tally["filter_duplicates"] += num - len(distinct)
  return np.divmod(distinct, max(shape[1], 1))


def _keys(lines: list[bytes], path: Path, first: int, shape: tuple[int, int]) -> np.ndarray:
  fields = [line.split(None, 2) for line in lines]  # a third word is an error, whatever it is
  numbers = np.array([first + at for at, pair in enumerate(fields) if pair])
  try:
    if any(len(pair) not in (0, 2) for pair in fields):
      raise ValueError
    pairs = parse_numbers([word for pair in fields for word in pair], np.int64).reshape(-1, 2)
  except (ValueError, OverflowError):
    raise _first_bad_line(fields, lines, path, first) from None
  for column, what in enumerate(("a row", "a label")):
    wrong = (pairs[:, column] < 0) | (pairs[:, column] >= shape[column])
    if wrong.any():
      at = int(np.argmax(wrong))
      raise refusal(path, numbers[at], f"{what} in [0, {shape[column]})", lines[numbers[at] - first])
  return pairs[:, 0] * shape[1] + pairs[:, 1]


def _first_bad_line(fields: list[list[bytes]], lines: list[bytes], path: Path, first: int) -> DataError:
  def is_good(pair: list[bytes]) -> bool:
    try:
      parse_numbers(pair, np.int64)
    except (ValueError, OverflowError):
      return False
    return len(pair) in (0, 2)

  at = next(at for at, pair in enumerate(fields) if not is_good(pair))
  return refusal(path, first + at, 'two whole numbers, "row label"', lines[at])
