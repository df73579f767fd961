"""Layouts with separate files for texts, one per line, and targets, a sparse matrix.

Both layouts of this kind are here: they differ only in their file names.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from xmc_jax.data.formats import label_tables
from xmc_jax.data.formats.lines import anywhere, find, need, text_lines
from xmc_jax.data.formats.matrices import points
from xmc_jax.data.formats.source import Options
from xmc_jax.data.formats.table_files import SUFFIXES, suffix


class Names(NamedTuple):
  """Holds the file names of a layout; the first name found is used."""

  targets: dict[str, tuple[str, ...]]
  texts: dict[str, tuple[str, ...]]
  labels: tuple[str, ...]


INDEX = Names(
  targets={"train": ("trn_X_Y.txt", "trn_X_Y.npz"), "test": ("tst_X_Y.txt", "tst_X_Y.npz")},
  texts={
    "train": anywhere(
      *("trn_X.txt", "train_map.txt", "trn_map.txt", "train_raw_texts.txt", "train.raw.txt", "trn.raw.txt")
    ),
    "test": anywhere(
      *("tst_X.txt", "test_map.txt", "tst_map.txt", "test_raw_texts.txt", "test.raw.txt", "tst.raw.txt")
    ),
  },
  labels=anywhere(
    *("Y.txt", "label_map.txt", "lbl_map.txt", "labels_map.txt", "Y_map.txt", "Yf.txt"),
    *("label.raw.txt", "lbl.raw.txt"),
  ),
)
PECOS = Names(
  targets={"train": ("Y.trn.npz",), "test": ("Y.tst.npz",)},
  texts={
    "train": anywhere("X.trn.txt", "trn_X.txt"),
    "test": anywhere("X.tst.txt", "tst_X.txt"),
  },
  labels=anywhere("Y.txt", "output-items.txt", "Yf.txt"),
)


def recognise(names: Names, folder: Path, options: Options, notices: list[str]) -> dict | None:
  """Returns the `Source` fields of such a layout, or None if the folder does not have its files."""
  first = find(folder, *names.targets["train"])
  if first is None:
    return None
  targets = {"train": first, "test": need(folder, *names.targets["test"], beside=first)}
  texts = {split: need(folder, *names.texts[split], beside=path) for split, path in targets.items()}
  named = bool(options.label_file)
  labels = label_tables.named_file(folder, options) if named else need(folder, *names.labels, beside=first)
  is_table = suffix(labels) in SUFFIXES
  if not is_table:
    label_tables.refuse_settings_without_columns(labels, options)
  read_labels = label_tables.chunks if is_table else text_lines

  def read(split: str, num_labels: int) -> Iterator:
    chunks = (lines.texts for lines in text_lines(texts[split], notices, options))
    return points(chunks, texts[split], targets[split], num_labels, notices)

  return {
    "files": (*targets.values(), *texts.values(), labels),
    "labels_file": labels,
    "labels": lambda: read_labels(labels, notices, options),
    "splits": {split: partial(read, split) for split in targets},
  }
