"""Tables in all their formats, and lines with labels: the files of each split, their columns, their rows."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from xmc_jax.data.formats import arrow, document_folders, separated, short_texts
from xmc_jax.data.formats.columns import TableColumns, shown, text_and_label_columns
from xmc_jax.data.formats.json_records import is_array, items, objects
from xmc_jax.data.formats.label_cells import columns_of_bits
from xmc_jax.data.formats.lines import CHUNK_ROWS, PACKED, Lines, find
from xmc_jax.data.formats.source import DEFAULTS, Options, Place, excerpt, refusal
from xmc_jax.errors import DataError

# That tables may be named by; .arrow files never are.
SUFFIXES = (".jsonl", ".csv", ".tsv", ".parquet", ".json", ".xlsx")
TABBED = (".tsv", ".txt")  # whose quotation marks may be letters
JSON = (".jsonl", ".json")  # whose rows have keys of their own, so that one may lack some
ARROW = (".parquet", ".arrow")  # whose schemas name their columns
_SHARD = re.compile(
  r"(?P<split>\w[\w.]*)-(?P<number>\d{5,9})-of-(?P<total>\d{5,9})(-[0-9a-f]{16})?(?P<end>\.\w+?(\.(gz|bz2|xz|zip))?)"
)
VALIDATION = ("validation", "validate", "valid", "val", "dev")
_STEMS = {"train": ("train", "trn"), "test": ("test", "tst")}
_LABELLED_LINE = re.compile(r"((?:__label__\S+\s+)+|\d+(?:,\d+)*\t|\t)(.*)")


def suffix(path: Path) -> str:
  """Returns the file's suffix, without the end of a compressed file's name."""
  return Path(_unpacked(path)).suffix.lower()


def _unpacked(path: Path) -> str:
  return path.stem if path.suffix in PACKED else path.name


def records(
  path: Path, columns: Sequence[str], notices: list[str], options: Options = DEFAULTS
) -> Iterator[tuple[Place, list[dict]]]:
  """Yields the rows of a table, some at a time, with at least these columns.

  Raises:
    DataError: the table is damaged, or has one of these columns twice.
  """
  match kind := suffix(path):
    case _ if path.is_dir():
      yield from document_folders.records(path, notices, options)
    case ".jsonl" | ".json":
      yield from items(path, options) if is_array(path) else objects(path, notices, options)
    case ".arrow" | ".parquet":
      yield from arrow.records(path, columns)
    case ".txt" if not has_header(path, options):
      yield from _labelled_lines(path, notices, options)
    case ".tsv" if short_texts.is_corpus(path, options):
      yield from short_texts.records(path, notices, options)
    case ".xlsx":
      rows = separated.sheet_rows(path, notices)
      yield from separated.with_names(path, rows, columns, options, notices, "row")
    case _:
      yield from separated.records(path, columns, notices, options, "," if kind == ".csv" else "\t")


def column_names(
  path: Path, notices: list[str], options: Options = DEFAULTS, may_be_empty: bool = False
) -> list[str]:
  """Returns the columns of a table: from its schema, its header, or the keys of its first records."""
  if suffix(path) in ARROW:
    return list(arrow.schema(path).names)
  names: dict[str, None] = {}
  num_rows = 0
  for _, rows in records(path, (), notices, options):
    names |= dict.fromkeys(chain.from_iterable(rows))
    num_rows += len(rows)
    if num_rows >= CHUNK_ROWS or (names and suffix(path) not in JSON):
      break
  if not names and not may_be_empty:
    raise refusal(path, 1, "at least one row", "an empty table")
  return list(names)


def resolved(path: Path, names: TableColumns, options: Options) -> dict[str, str]:
  """Returns the options that read a table as it was read, without guesses; none of one without names."""
  if has_labelled_lines(path, options):
    return {}
  found = {"text": "+".join(names.texts), "label_column": names.labels[0] if len(names.labels) == 1 else ""}
  return {**found, "quoting": separated.quoting(path, options)} if suffix(path) in TABBED else found


def has_labelled_lines(path: Path, options: Options) -> bool:
  """Returns whether a file has labelled lines, of fastText, PECOS or Annif, and so no columns with names.

  So has a folder of documents.
  """
  kind = suffix(path)
  if path.is_dir():
    return True
  is_txt = kind == ".txt" and not has_header(path, options)
  return is_txt or (kind == ".tsv" and short_texts.is_corpus(path, options))


def has_header(path: Path, options: Options) -> bool:
  """Returns whether a .txt file is a table with tabs, as Excel saves one: its first line is not labelled."""
  with Lines(path, [], options) as lines:
    return any("\t" in text and not _LABELLED_LINE.fullmatch(f"{text} ") for text in lines.take_text()[:1])


def _labelled_lines(path: Path, notices: list[str], options: Options) -> Iterator[tuple[Place, list[dict]]]:
  """Yields lines of fastText ("__label__a __label__b words") or of PECOS' text2text ("0,3<tab>words")."""
  with Lines(path, notices, options) as lines:
    for first, texts in lines.chunks():
      place = Place(path, range(first, first + len(texts)))
      records = []
      for row, text in enumerate(texts):
        parts = _LABELLED_LINE.fullmatch(f"{text} ")
        if parts is None:
          raise place.refuse(row, "labels and a text, as '__label__NAME text' or '0,3<tab>text'", text)
        if "__label__" in parts[1]:
          labels = [word.removeprefix("__label__") for word in parts[1].split()]
        else:
          labels = [int(label) for label in parts[1].split(",") if label.strip()]
        records.append({"text": parts[2].strip(), "labels": labels})
      yield place, records


class SplitFiles(NamedTuple):
  """Holds the tables of one split, which have the same columns."""

  files: tuple[Path, ...]  # in the order of their rows
  features: Path | None = None  # the `dataset_info.json` that describes their columns
  held_out: tuple[Path, ...] = ()  # the last of the files, whose rows choose the best parameters

  @property
  def name(self) -> str:
    """Returns what a notice calls these files."""
    first, num_others = self.files[0], len(self.files) - len(self.held_out) - 1
    folder = f"{first.parent.name}/" if self.features else ""
    return f"{folder}{first.name}" + (f" and {num_others} more" if num_others else "")

  def followed_by(self, validation: "SplitFiles | None") -> "SplitFiles":
    """Returns the split with the rows of this one, to be held out, behind its own."""
    more = validation.files if validation else ()
    return self._replace(files=(*self.files, *more), held_out=more)


def find_splits(
  folder: Path, suffixes: tuple[str, ...], notices: list[str]
) -> tuple[SplitFiles | None, SplitFiles | None]:
  """Returns the training (with validation) and the test tables of a folder; None for a split without any.

  They are called `train.*`, or `NAME-train.*`, of which there may be several, or are numbered shards.
  Adds a notice for each split that is left out. Refuses a split that lacks a shard, or has those of two sets.
  """
  shards = _shards(folder, suffixes)
  train, test = (_find_split(folder, stems, suffixes, shards) for stems in _STEMS.values())
  if train is not None:
    train = train.followed_by(_find_split(folder, VALIDATION, suffixes, shards))
    read = {*VALIDATION, *(stem for stems in _STEMS.values() for stem in stems)}
    notices += left_out([split for split in shards if split not in read])
  return train, test


def is_annifs(path: Path, options: Options) -> bool:
  """Returns whether a table or a folder of documents is one of Annif's, beside which a vocabulary lies."""
  if path.is_dir() or (suffix(path) == ".tsv" and short_texts.is_corpus(path, options)):
    return True
  return suffix(path) == ".csv" and "subject_uris" in column_names(path, [], options)


def find_documents(
  folder: Path, label_file: Path | None, options: Options
) -> tuple[SplitFiles | None, SplitFiles | None]:
  """Returns the same as `find_splits` of folders of documents: `train/` and so on, or `folder` itself."""
  train, validation, test = (
    SplitFiles((found,)) if (found := document_folders.find(folder, stems, label_file, options)) else None
    for stems in (_STEMS["train"], VALIDATION, _STEMS["test"])
  )
  if train:
    return train.followed_by(validation), test
  whole = document_folders.find(folder, [""], label_file, options)
  return SplitFiles((whole,)) if whole else None, None


def left_out(splits: list[str]) -> list[str]:
  """Returns a notice for the splits of a data set that are not read; none if there are no such splits."""
  if not splits:
    return []
  return [f"not read: split {', '.join(map(repr, sorted(set(splits))[:8]))}"]


def _find_split(
  folder: Path, stems: tuple[str, ...], suffixes: tuple[str, ...], shards: dict[str, list[re.Match]]
) -> SplitFiles | None:
  single = find(folder, *(stem + kind for stem in stems for kind in suffixes))
  ends = tuple(f"-{stem}{kind}" for stem in stems for kind in suffixes)
  named = [file for file in sorted(folder.iterdir()) if _unpacked(file).endswith(ends) and file.is_file()]
  numbered = next(((stem, shards[stem]) for stem in stems if stem in shards), None)
  if single and numbered:
    raise DataError(f"{folder}: {single.name} and {numbered[1][0][0]} are the same split; remove one")
  if single:
    return SplitFiles((single,))
  if named and not numbered:
    return SplitFiles(tuple(named))
  return _checked(folder, *numbered) if numbered else None


def _shards(folder: Path, suffixes: tuple[str, ...]) -> dict[str, list[re.Match]]:
  shards: dict[str, list[re.Match]] = {}
  for path in sorted(folder.iterdir()):
    if suffix(path) in suffixes and (match := _SHARD.fullmatch(path.name)):
      shards.setdefault(match["split"], []).append(match)
  return shards


def _checked(folder: Path, split: str, shards: list[re.Match]) -> SplitFiles:
  first = shards[0]
  total = int(first["total"])
  for other in shards:
    if (other["total"], other["end"]) != (first["total"], first["end"]):
      raise DataError(f"{folder}: {first[0]} and {other[0]} belong to two sets of shards; remove one set")
  by_number = {int(match["number"]): match for match in shards}
  missing = next((number for number in range(total) if number not in by_number), 0)
  if len(shards) != total or by_number.keys() != {*range(total)}:
    wanted = f"{split}-{missing:05}-of-{first['total']}{first['end']}"
    raise DataError(f"{folder}: expected {total} shards, such as {wanted}, found {len(shards)}")
  files = tuple(folder / by_number[number][0] for number in range(total))
  return SplitFiles(files)


def find_columns(
  split: SplitFiles, of_train: TableColumns | None, options: Options, notices: list[str]
) -> TableColumns:
  """Returns the columns to read of a split's tables; those of train tell the columns of 0 and 1 of another.

  Raises:
    DataError: a column is missing. Rows of JSON may lack labels, and a file of it all rows.
  """
  first, *others = split.files

  def one_hot() -> tuple[str, ...]:
    if of_train:
      return of_train.labels
    with suppress(DataError):  # a column of another type, which nobody may need
      _, rows = next(records(first, (), notices, options), (None, []))
      return columns_of_bits(rows)
    return ()

  chosen = text_and_label_columns(first, column_names(first, notices, options), options, one_hot, notices)
  for path in others:
    is_json = suffix(path) in JSON
    have = column_names(path, notices, options, may_be_empty=is_json)
    wanted = chosen.texts if is_json else (*chosen.texts, *chosen.labels)
    if have and (missing := next((name for name in wanted if name not in have), "")):
      expected = f"a column {excerpt(missing)}, as in {first.name}"
      raise DataError(f"{path}: expected {expected} {shown(have)}")
  return chosen
