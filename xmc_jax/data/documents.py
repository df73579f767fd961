"""Reads documents to label: a text a line, a file each, or the rows of a table with their ids."""

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from xmc_jax.data import extracted
from xmc_jax.data.formats import columns
from xmc_jax.data.formats.json_records import joined_text
from xmc_jax.data.formats.lines import STANDARD_INPUT, open_bytes, reading, text_chunks
from xmc_jax.data.formats.source import Options, excerpt
from xmc_jax.data.formats.table_files import SUFFIXES, column_names, has_header, records, suffix
from xmc_jax.errors import DataError

_LABELS = re.compile(r"^(__label__\S+(\s+|$))+")
_IDS = ("id", "uid", "key")
_UNREAD = (".doc", ".odt", ".rtf")  # other files of a folder of documents
_SETTING = re.compile(r"(;| \() ?change with --config\.(?:data\.)?([\w.]+)[^)]*\)")


class Document(NamedTuple):
  """Holds a text to label and what its owner calls it: a table's id, a file's name; None for a line."""

  text: str
  id: str | int | None = None


def of_lines(lines: Iterable[str]) -> Iterator[Document]:
  """Yields each line, without its line end, as a document."""
  return (Document(line.rstrip("\r\n")) for line in lines)


def read(path: Path, whole: bool, options: Options, notices: list[str]) -> Iterator[Document]:
  """Opens a file, or a folder of files, each of which is a document.

  So is a PDF or Word file, and any file if `whole`. Else documents are the rows of a table (a .txt file, too,
  if it has the run's columns), and the lines of another file or STANDARD_INPUT. Messages for the user are
  added to `notices` while they are read.
  """
  lines = of_lines(_without_labels(path, options, notices))
  if path is STANDARD_INPUT:
    return iter([Document(_whole(path, notices, options))]) if whole else lines
  if whole or path.is_dir() or suffix(path) in extracted.SUFFIXES:
    root = path if path.is_dir() else path.parent
    if unread := sorted(file.name for file in path.rglob("*") if suffix(file) in _unread()):
      notices.append(f"{path.name}: files that are not read: {len(unread):,}, such as {excerpt(unread[0])}")
    return (Document(_whole(file, notices, options), str(file.relative_to(root))) for file in files_of(path))
  if suffix(path) in SUFFIXES or _is_table(path, options):
    return _rows(path, options, notices)
  files_of(path)  # a missing file is refused at once, not when the first document is asked for
  return lines


def _unread() -> tuple[str, ...]:
  """Returns the suffixes of a folder's files that are no texts and that nothing here can read."""
  return _UNREAD if extracted.is_installed() else (*_UNREAD, *extracted.SUFFIXES)


def without_settings(notice: str, kept: Collection[str] = ()) -> str:
  """Returns a reader's notice without the setting that changes it, unless it is one of `kept`."""
  return _SETTING.sub(
    lambda found: found[0] if found[2] in kept else ")" if found[0][0] == ";" else "", notice
  )


def files_of(path: Path) -> list[Path]:
  """Returns the files to read: those of a folder, in order, or `path`.

  Of a folder with .txt files, those, .md, PDF and Word files; of another, all.

  Raises:
    DataError: nothing is there.
  """
  with reading(path):
    path.stat()
  if not path.is_dir():
    if path.is_file() and suffix(path) not in (*SUFFIXES, *extracted.SUFFIXES):  # a pipe is read but once
      with reading(path), open_bytes(path) as file:
        is_packed = file.peek(4)[:4] in extracted.BEGINNINGS
      if is_packed:
        raise DataError(f"{path}: expected plain text, found a PDF, Word or zip file; name it .pdf or .docx")
    return [path]
  inside = [file.relative_to(path) for file in sorted(path.rglob("*")) if file.is_file()]
  files = [path / file for file in inside if not any(part.startswith((".", "~$")) for part in file.parts)]
  others = [file for file in files if suffix(file) not in (*SUFFIXES, *_unread())]
  texts = [file for file in others if suffix(file) in (".txt", ".md", *extracted.SUFFIXES)]
  if not others:
    tables = [file for file in files if suffix(file) in SUFFIXES]
    instead = f"only tables; give one, as --input={tables[0]}" if tables else "no file"
    raise DataError(f"{path}: expected a folder of documents, found {instead}")
  return texts if any(suffix(file) == ".txt" for file in texts) else others


def _is_table(path: Path, options: Options) -> bool:
  """Returns whether a .txt file has tabs and, in its first line, the run's columns of texts."""
  if suffix(path) != ".txt" or not has_header(path, options):
    return False
  have = column_names(path, [], options._replace(label_column=""))
  return bool(columns.named_columns(options.text, have))


def _without_labels(path: Path, options: Options, notices: list[str]) -> Iterator[str]:
  """Yields the lines of a file, without fastText's labels before the texts."""
  for text in chain.from_iterable(text_chunks(path, notices, options)):
    without = _LABELS.sub("", text)
    if without != text:
      notices.append(f"{path.name}: __label__ and what follows it is left out of the texts")
    yield without


def _whole(path: Path, notices: list[str], options: Options) -> str:
  if suffix(path) in extracted.SUFFIXES:
    return _extracted(path, notices)
  text = "\n".join(line for lines in text_chunks(path, notices, options) for line in lines)
  if "\0" in text:
    raise DataError(f"{path}: expected a text, found other bytes; convert it to plain text first")
  return text


def _extracted(path: Path, notices: list[str]) -> str:
  """Returns the text of a PDF or Word file; '' with a notice if it has none or cannot be read."""
  with reading(path), open_bytes(path) as file:
    content = file.read()
  try:
    if text := extracted.text_of(content, path.name):
      return text
    notices.append(f"{path.name}: no text, as in scanned pages")
  except DataError as error:
    notices.append(f"{error}; it gets no labels")
  return ""


def _rows(path: Path, options: Options, notices: list[str]) -> Iterator[Document]:
  label, options = options.label_column, options._replace(label_column="")
  have = column_names(path, notices, options)
  named = (options.text, *options.text.split("+"))
  label = label or columns.guess(columns.LABELS, [name for name in have if name not in named])
  names = columns.text_columns(options.text, [name for name in have if name != label or name in named])
  if not names:
    expected = f"a column {excerpt(options.text)} of texts, as the run was trained on"
    raise DataError(f"{path}: expected {expected} {columns.shown(have)}; set --config.data.text=NAME")
  id_ = columns.guess(_IDS, [name for name in have if name not in names])
  from_ids = f", ids from column {excerpt(id_)}" if id_ else ""
  notices.append(f"{path.name}: texts from column {' and '.join(map(excerpt, names))}{from_ids}")

  def documents() -> Iterator[Document]:
    for place, rows in records(path, (*names, *([id_] if id_ else [])), notices, options):
      for row, record in enumerate(rows):
        own = record.get(id_)
        text = joined_text({**dict.fromkeys(names), **record}, names, place, row)
        yield Document(text, own if isinstance(own, str | int | None) else str(own))

  return documents()
