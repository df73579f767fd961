"""Recognises the files of vocabularies, and reads Annif's TSV (`<uri>⇥name`) and CSV (`uri,label_en`)."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from xmc_jax.data.formats import document_folders, separated
from xmc_jax.data.formats.lines import Lines
from xmc_jax.data.formats.source import DEFAULTS, Options, Place, some_of
from xmc_jax.data.formats.table_files import suffix
from xmc_jax.data.vocabulary import rdf
from xmc_jax.data.vocabulary.concepts import Concept
from xmc_jax.errors import DataError

_LINE = re.compile(r"<([^<>\s]+)>\t([^\t]*)(?:\t([^\t]*))?")  # a notation may follow the name
_LABEL = "label_"  # begins the columns of names in a CSV
_SAMPLE = 100  # lines that tell a TSV


def is_vocabulary(path: Path, options: Options = DEFAULTS) -> bool:
  """Returns whether a file is a vocabulary: by its suffix or, of TSV and CSV, by its first lines."""
  kind = suffix(path)
  if kind not in (".tsv", ".csv"):
    return kind in rdf.FORMATS
  with suppress(DataError), Lines(path, [], options) as lines:
    first = [line for line in lines.take_text()[:_SAMPLE] if line.strip()] or [""]
    if kind == ".tsv":
      return all(map(_LINE.fullmatch, first))
    header = [name.strip(' "') for name in re.split("[,;\t]", first[0])]
    return "uri" in header and any(name.startswith(_LABEL) for name in header)
  return False


def find(folder: Path, options: Options, points: Sequence[Path] = ()) -> Path | None:
  """Returns the one vocabulary of a folder besides `points`, None if there is none; refuses several."""
  found = [
    file
    for file in sorted(folder.iterdir())
    if file.is_file()
    and file not in points
    and is_vocabulary(file, options)
    and not document_folders.is_of_document(file)
  ]
  if len(found) > 1:
    names = some_of([file.name for file in found])
    raise DataError(f"{folder}: several vocabularies, {names}; take one with --config.data.vocabulary=FILE")
  return next(iter(found), None)


def read(path: Path, options: Options, notices: list[str]) -> list[Concept]:
  """Returns the concepts of a vocabulary, in its order.

  Raises:
    UserError: rdflib is needed, and not installed.
    DataError: the file is damaged, has no concept, or has a URI twice.
  """
  if suffix(path) in rdf.FORMATS:
    return list(_read_rdf(path, path.stat().st_mtime_ns))
  rows = _tsv if suffix(path) == ".tsv" else _csv
  concepts: dict[str, Concept] = {}
  for place, chunk in rows(path, options, notices):
    for row, concept in enumerate(chunk):
      if not concept.uri or concept.uri in concepts:
        raise place.refuse(row, "another URI on each line", concept.uri)
      concepts[concept.uri] = concept
  return list(concepts.values())


@lru_cache(1)  # data are prepared twice if a tokenizer is trained on them
def _read_rdf(path: Path, mtime_ns: int) -> tuple[Concept, ...]:
  return tuple(rdf.read(path))


def _tsv(path: Path, options: Options, notices: list[str]) -> Iterator[tuple[Place, list[Concept]]]:
  with Lines(path, notices, options) as lines:
    for first, texts in lines.chunks():
      place = Place(path, [first + at for at, text in enumerate(texts) if text.strip()])
      matches = [_LINE.fullmatch(text) for text in texts if text.strip()]
      if None in matches:
        row = matches.index(None)
        found = texts[place.numbers[row] - first]
        raise place.refuse(row, "a URI in angle brackets, a tab and a name", found)
      yield place, [_named(match[1], {"": match[2]}, match[3] or "") for match in matches if match]


def _csv(path: Path, options: Options, notices: list[str]) -> Iterator[tuple[Place, list[Concept]]]:
  plain = DEFAULTS._replace(encoding=options.encoding, quoting=options.quoting)
  for place, rows in separated.records(path, ("uri",), notices, plain, ","):
    concepts = []
    for row in rows:
      names = {key.removeprefix(_LABEL).lower(): row[key] for key in row if key.startswith(_LABEL)}
      concepts.append(_named(row["uri"].strip().strip("<>"), names, row.get("notation", "")))
    yield place, concepts


def _named(uri: str, names: dict[str, str], notation: str) -> Concept:
  cleaned = {language: " ".join(name.split()) for language, name in names.items() if name.strip()}
  return Concept(uri, cleaned, notation=notation.strip())
