"""Annif's folders of texts, each in a file of its own.

Documents have a text in `ID.txt`, and labels in `ID.tsv` (`<uri>`, tab, name) or `ID.key`. A file of a
subject corpus, as Annif had until 1.3, has all texts of a concept, below a line of its URI and name.
"""

import codecs
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from xmc_jax.data.formats.lines import CHUNK_BYTES, CHUNK_ROWS, Lines, open_bytes, reading, text_chunks
from xmc_jax.data.formats.source import Options, Place, excerpt, refusal
from xmc_jax.errors import DataError

_OF_LABELS = (".tsv", ".key")  # the first that is there counts
_CONCEPT = re.compile(r"<?((?:[A-Za-z][A-Za-z0-9+.-]*://|urn:)[^\s<>]+)>?\s+\S.*")
_SAMPLE = 100  # files that tell a subject corpus


def is_corpus(folder: Path) -> bool:
  """Returns whether a folder has a text with a file of its labels."""
  return folder.is_dir() and any(map(is_of_document, _label_files(folder)))


def _has_subjects(folder: Path, options: Options) -> bool:
  """Returns whether the first texts of a folder all begin with a URI and a name."""
  first = [""]
  with suppress(DataError):
    for path in sorted(filter(Path.is_file, folder.glob("*.txt")))[:_SAMPLE]:
      with Lines(path, [], options) as lines:
        first += lines.take_text()[:1]
  return len(first) > 1 and all(_CONCEPT.fullmatch(line.rstrip()) for line in first[1:])


def is_of_document(file: Path) -> bool:
  """Returns whether a file holds the labels of a text beside it; a table, too, may have such a neighbour."""
  if file.suffix not in _OF_LABELS or not file.with_suffix(".txt").is_file():
    return False
  with reading(file), open_bytes(file) as content:
    return file.suffix == ".key" or content.read(4).removeprefix(codecs.BOM_UTF8)[:1] in (b"", b"<")


def find(folder: Path, stems: Sequence[str], label_file: Path | None, options: Options) -> Path | None:
  """Returns the folder of documents below `folder` that has one of these names; '' is `folder` itself.

  A subject corpus has a name: the first line of a README may look like one. Refuses labels without a text;
  `label_file` is the vocabulary, which may lie among them.
  """
  is_found = lambda path: is_corpus(path) or (path != folder and _has_subjects(path, options))
  found = next(filter(is_found, map(folder.joinpath, stems)), None)
  for file in _label_files(found) if found else ():
    if file != label_file and not file.with_suffix(".txt").is_file():
      raise DataError(f"{file}: expected its text beside it, in {file.stem}.txt")
  return found


def files_of(path: Path) -> list[Path]:
  """Returns the files that are read of a folder of documents; of a file, the file."""
  return [*sorted(path.glob("*.txt")), *_label_files(path)] if path.is_dir() else [path]


def records(folder: Path, notices: list[str], options: Options) -> Iterator[tuple[Place, list[dict]]]:
  """Yields the documents as records, in the order of their names, some at a time."""
  rows: list[dict] = []
  unlabelled: list[str] = []
  size = first = 0
  texts = sorted(folder.glob("*.txt"))
  read = _document if any(map(is_of_document, _label_files(folder))) else _subject
  for number, path in enumerate(texts, 1):
    text, labels = read(path, notices, options)
    rows.append({"text": text, "labels": labels or []})
    unlabelled += [path.name] if labels is None else []
    size += len(text)
    if size >= CHUNK_BYTES or len(rows) == CHUNK_ROWS or number == len(texts):
      yield Place(folder, range(first + 1, number + 1), "document"), rows
      rows, size, first = [], 0, number
  if unlabelled:
    such = f"{len(unlabelled):,} of {len(texts):,}, such as {excerpt(unlabelled[0])}"
    notices.append(f"{folder.name}: texts without a .tsv or .key have no labels: {such}")


def _label_files(folder: Path) -> list[Path]:
  return sorted(file for file in folder.iterdir() if file.suffix in _OF_LABELS)


def _document(path: Path, notices: list[str], options: Options) -> tuple[str, list[str] | None]:
  """Returns a text and its labels, None if it has no file of them."""
  file = next(filter(Path.is_file, map(path.with_suffix, _OF_LABELS)), None)
  return _text(path, notices, options), _labels(file, notices, options) if file else None


def _subject(path: Path, notices: list[str], options: Options) -> tuple[str, list[str]]:
  """Returns the texts of a concept as one, and its URI."""
  first, _, text = _text(path, notices, options).partition("\n")
  if not (match := _CONCEPT.fullmatch(first.rstrip())):
    raise refusal(path, 1, "a URI and a name, as in other files of this folder", first)
  return text, [match[1]]


def _text(path: Path, notices: list[str], options: Options) -> str:
  return "\n".join(chain.from_iterable(text_chunks(path, notices, options)))


def _labels(path: Path, notices: list[str], options: Options) -> list[str]:
  labels = []
  for number, line in enumerate(chain.from_iterable(text_chunks(path, notices, options)), 1):
    label = line.partition("\t")[0].strip()
    if label and path.suffix == ".tsv":
      if not (label.startswith("<") and label.endswith(">")):
        raise refusal(path, number, "a URI in angle brackets", line)
      label = label[1:-1]
    labels += [label] if label else []
  return labels
