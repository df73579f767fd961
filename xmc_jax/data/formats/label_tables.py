"""Files of labels: a text a line, a table with keys, names, descriptions and parents, or a vocabulary.

All rows of such a file are in memory at once.
"""

import json
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, compress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from xmc_jax.data.formats import columns
from xmc_jax.data.formats.ancestors import with_ancestors
from xmc_jax.data.formats.json_records import joined_text, text_of
from xmc_jax.data.formats.label_cells import ENOUGH_KNOWN
from xmc_jax.data.formats.lines import CHUNK_ROWS, find, text_chunks
from xmc_jax.data.formats.source import KeyedTexts, LabelTable, Options, Place, excerpt, refusal
from xmc_jax.data.formats.table_files import SUFFIXES, records, suffix
from xmc_jax.data.vocabulary import files as vocabulary_files
from xmc_jax.data.vocabulary import labels as concept_labels
from xmc_jax.data.vocabulary.concepts import Concept
from xmc_jax.errors import ConfigError, DataError


class _Columns(NamedTuple):
  key: str
  names: tuple[str, ...]
  parent: str


def read(
  path: Path,
  options: Options,
  notices: list[str],
  samples: Sequence[set[str]] = (),
  texts: Sequence[str] = (),
) -> LabelTable:
  """Reads a file of labels; `samples` are some of the points' labels, which tell the column of keys.

  `texts` are some of the points, whose language a vocabulary is read in.

  Raises:
    DataError: a column is missing; a parent is no label, or a label is its own ancestor.
  """
  if vocabulary_files.is_vocabulary(path, options):
    return concept_labels.read(path, options, notices, texts)
  if suffix(path) not in SUFFIXES:
    refuse_settings_without_columns(path, options)
    texts = list(chain.from_iterable(text_chunks(path, notices, options)))
    notices += _empty_texts(path, texts)
    return LabelTable(texts, texts)
  as_points = options._replace(text=options.label_text, label_column="")  # may be a column's number
  rows: list[dict] = []
  numbers = array("q")
  for place, chunk in records(path, (), notices, as_points):
    rows += chunk
    numbers.extend(place.numbers)
  if not rows:
    raise refusal(path, 1, "at least one row", "an empty table")
  place = place._replace(numbers=numbers)
  chosen = _find_columns(path, rows, options, notices)
  if key := _key_by_content(rows, chosen, samples):
    notices.append(f"{path.name}: keys from column {excerpt(key)}, as cells hold its values")
    chosen = chosen._replace(key=key)
  wanted = [name for name in (*chosen.names, chosen.key, chosen.parent) if name]
  next(records(path, wanted, [], as_points))  # refuses one of them that the table has twice
  texts = [joined_text(record, chosen.names, place, row) for row, record in enumerate(rows)]
  names = texts
  if len(chosen.names) > 1:
    names = [joined_text(record, chosen.names[:1], place, row) for row, record in enumerate(rows)]
  keys = [text_of(record.get(chosen.key)) or "" for record in rows] if chosen.key else names
  if chosen.parent:
    parents = _parents([record.get(chosen.parent) for record in rows], keys, place, chosen.parent)
    texts = with_ancestors(texts, names, keys, parents, place)
  notices += _empty_texts(path, texts)
  return LabelTable(texts, keys, chosen.key)


def _empty_texts(path: Path, texts: list[str]) -> list[str]:
  rows = [row for row, text in enumerate(texts, 1) if not text.strip()]
  such = f"{len(rows):,}, the first in row {rows[0]:,}" if rows else ""
  return [f"{path.name}: labels with an empty text: {such}; predictions may hold them"] if rows else []


def _parents(values: list[object], keys: list[str], place: Place, column: str) -> list[int]:
  """Returns the number of each label's parent, -1 if it has none; of two with one key, the first."""
  ids: dict[str, int] = {}
  for at, key in enumerate(keys):
    ids.setdefault(key, at)
  parents = []
  for at, value in enumerate(values):
    key = text_of(value) or ""  # data frames with gaps store a number as 7.0
    parent = -1 if text_of(value) == "" else ids.get(key, ids.get(key.removesuffix(".0")))
    if parent is None:
      expected = f"the key of another label, or nothing, in column {excerpt(column)}"
      raise place.refuse(at, expected, value)
    parents.append(parent)
  return parents


def find_label_file(path: Path, options: Options, points: Sequence[Path] = ()) -> Path | None:
  """Returns the file of labels beside a table or in a folder: the options', `labels.*` or a vocabulary.

  `points` are the folder's tables of points.
  """
  folder = path.parent if path.is_file() else path
  if options.vocabulary:
    return _named_vocabulary(folder, options)
  if options.label_file:
    return named_file(folder, options)
  stems = ("labels", "lbl", "output-labels", "output-items")  # the last two are PECOS's
  names = [stem + kind for stem in stems for kind in (".txt", *SUFFIXES)]
  return None if path.is_file() else find(folder, *names) or vocabulary_files.find(folder, options, points)


def repeated_keys(path: Path, table: LabelTable) -> list[str]:
  """Returns a notice for labels of one text that cells may name; refuses labels of one key, and no labels."""
  if not table.texts:
    raise DataError(f"{path}: expected at least one label, found none")
  repeated = [key for key, count in Counter(table.keys).items() if count > 1 and key.strip()]
  if not repeated:
    return []
  if table.key_column:
    found = f"{excerpt(repeated[0])} again (keys of several labels: {len(repeated):,})"
    raise DataError(f"{path}: expected each key once in column {excerpt(table.key_column)}, found {found}")
  such = f"{len(repeated):,}, such as {excerpt(repeated[0])}"
  return [f"{path.name}: texts of several labels: {such}; in cells, they mean the first"]


def chunks(path: Path, notices: list[str], options: Options) -> Iterator[KeyedTexts]:
  """Yields the labels of a file whose rows are in the order of label ids."""
  table = read(path, options, notices)
  return chunks_of(table.texts, table)


def some_labels(table: LabelTable, is_left: Sequence[bool] | np.ndarray) -> LabelTable:
  """Returns the labels of a vocabulary that are left of its `[L]`."""
  texts, keys, names = (list(compress(part, is_left)) for part in (table.texts, table.keys, table.names))
  return table._replace(texts=texts, keys=keys, names=names, concepts=list(compress(table.concepts, is_left)))


def chunks_of(texts: list[str], table: LabelTable) -> Iterator[KeyedTexts]:
  """Yields labels with these texts: those of a file, then what was added, whose texts are keys and names."""
  added = texts[len(table.texts) :]
  keys = [*table.keys, *added] if table.keys != table.texts else []
  names = [*table.names, *added] if table.names else []
  concepts = [*table.concepts, *(Concept(uri, {}) for uri in added)] if table.concepts else []
  as_json = [json.dumps(concept._asdict(), ensure_ascii=False) for concept in concepts]
  for first in range(0, len(texts), CHUNK_ROWS):
    rows = slice(first, first + CHUNK_ROWS)
    yield KeyedTexts(texts[rows], *(column[rows] or None for column in (keys, names, as_json)))


def named_file(folder: Path, options: Options) -> Path:
  """Returns the file that `data.label_file` names; refuses one that is not there."""
  file = folder / options.label_file
  if not file.is_file():
    raise DataError(f"{file}: no such file (--config.data.label_file={options.label_file})")
  return file


def _named_vocabulary(folder: Path, options: Options) -> Path:
  """Returns the file that `data.vocabulary` names, in the folder or from where the command runs."""
  setting = f"--config.data.vocabulary={options.vocabulary}"
  if options.label_file:
    raise ConfigError(f"{setting} and --config.data.label_file={options.label_file}: set one of them")
  places = (folder / options.vocabulary, Path(options.vocabulary).expanduser())
  file = next(filter(Path.is_file, places), None)
  if file is None:
    raise DataError(f"{places[0]}: no such file ({setting})")
  if not vocabulary_files.is_vocabulary(file, options):
    expected = ".ttl, .rdf, .nt, .jsonld, or Annif's .tsv (<uri>, tab, name) or .csv (uri,label_en)"
    raise DataError(f"{file}: expected a vocabulary: {expected} ({setting})")
  return file


def refuse_settings_without_columns(path: Path, options: Options) -> None:
  """Refuses `data.label_text` and `data.label_parent` for labels that have no columns."""
  for key in ("label_text", "label_parent"):
    if value := getattr(options, key):
      what = "put the labels into a table with such columns, and name it with --config.data.label_file"
      raise DataError(f"{path}: has no columns of labels for --config.data.{key}={value}; {what}")


def unread_notices(path: Path, have: list[str], read: tuple[str, ...], options: Options) -> list[str]:
  """Returns a notice for a column of descriptions, and one for a column of parents, that is not read."""
  found = []
  others = [name for name in have if name not in read]
  description = columns.guess(columns.DESCRIPTIONS, others)
  if description and not options.label_text:
    setting = f"--config.data.label_text={'+'.join((*read[:1], description))}"
    found.append(f"{path.name}: column {excerpt(description)} is not read; {setting} adds it to label texts")
  parent = columns.guess(columns.PARENTS, others)
  if parent and not options.label_parent:
    setting = f"--config.data.label_parent={parent}"
    found.append(f"{path.name}: column {excerpt(parent)} is not read; {setting} puts ancestors before labels")
  return found


def _find_columns(path: Path, rows: list[dict], options: Options, notices: list[str]) -> _Columns:
  have = list(dict.fromkeys(chain.from_iterable(rows)))
  parent = options.label_parent
  if parent and parent not in have:
    raise _missing(path, parent, "parents", "label_parent", have)
  own = [name for name in have if name != parent]
  key = columns.guess(columns.KEYS, own)
  if options.label_text:
    names = columns.named_columns(options.label_text, own)
    if not names:
      raise _missing(path, options.label_text, "label texts", "label_text", have)
  else:
    # Its columns may have other names than those of the points, so a guess is allowed.
    others = [name for name in own if name != key] or own
    wanted = options.text if options.text in others else "title"
    names = columns.text_columns(wanted, others, columns.LABEL_TEXTS) or ((key,) if key and parent else ())
    if not names and len(own) == 2:
      are_numbers = [all(text.isdecimal() for text in _bare_texts(rows, name)) for name in own]
      key, name = own[::-1] if are_numbers == [False, True] else own
      names = (name,)
  if not names:
    raise _missing(path, "", "label texts", "label_text", have)
  notices += unread_notices(path, [name for name in own if name != key], names, options)
  return _Columns(key, names, parent)


def _bare_texts(rows: list[dict], name: str) -> list[str]:
  """Returns the texts of a column; a number of a data frame with gaps is 7, not 7.0."""
  return [(text_of(row.get(name)) or "").strip().removesuffix(".0") for row in rows]


def _key_by_content(rows: list[dict], chosen: _Columns, samples: Sequence[set[str]]) -> str:
  """Returns the column that has more of the points' labels than those chosen by name; '' if none has."""
  wanted = set(chain.from_iterable(samples))
  uses: dict[str, Counter[str]] = defaultdict(Counter)
  for name in dict.fromkeys(chain.from_iterable(rows)) if wanted else ():
    uses[name].update(text for text in _bare_texts(rows, name) if text in wanted)

  def share(*names: str) -> float:
    seen = set(chain.from_iterable(uses[name] for name in names))
    return max(len(seen & sample) / max(1, len(sample)) for sample in samples)

  own = (chosen.key, *chosen.names)
  others = {name: seen for name, seen in uses.items() if name not in ("", *own, chosen.parent)}
  best = max((name for name, seen in others.items() if seen.total() < 2 * len(seen)), key=share, default="")
  return best if best and ENOUGH_KNOWN <= share(best) > share(*own) else ""


def _missing(path: Path, name: str, of: str, setting: str, have: list[str]) -> DataError:
  remedy = f"set --config.data.{setting}=NAME {columns.shown(have)}"
  if not name:
    return DataError(f"{path}: expected a column of {of}; {remedy}, or call one 'text'")
  return DataError(f"{path}: expected a column {excerpt(name)} of {of}; {remedy}")
