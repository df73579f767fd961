"""Opens files, plain or gzip, and decodes their lines.

At most CHUNK_BYTES plus one line of a file are in memory at a time, however well the file is compressed.
A line longer than MAX_LINE_BYTES is refused. The parsed result of a line (lists, small numbers) may take
about forty times the memory of the line.
"""

import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from xmc_jax.data.formats.source import one_line, refusal
from xmc_jax.errors import DataError

# Large enough to keep the tokenizer's threads busy, small enough to bound the memory for long documents.
CHUNK_BYTES = 1 << 19
CHUNK_ROWS = 8192
# Far longer than the text of a document that a tokenizer truncates to a few hundred tokens.
MAX_LINE_BYTES = 1 << 24


@contextlib.contextmanager
def reading(path: Path, after_line: int | None = None) -> Iterator[None]:
  """Turns errors while a file is read into a one-line DataError."""
  where = f"{path}" if after_line is None else f"{path}, after line {after_line}"
  try:
    yield
  except FileNotFoundError:
    raise DataError(f"{path}: no such file") from None
  except PermissionError:
    raise DataError(f"{path}: no permission to read this file") from None
  except IsADirectoryError:
    raise DataError(f"{path}: expected a file, found a folder") from None
  except EOFError:
    raise DataError(f"{where}: expected more gzip data, found the end (a truncated download?)") from None
  except (gzip.BadGzipFile, zlib.error) as error:
    raise DataError(f"{where}: expected intact gzip data ({error})") from None
  except OSError as error:
    raise DataError(f"{where}: cannot be read ({error.strerror or one_line(error)})") from None


def open_bytes(path: Path) -> BinaryIO:
  """Opens a file for reading bytes; decompresses it if its name ends in `.gz`."""
  with reading(path):
    if path.suffix == ".gz":
      return io.BufferedReader(gzip.open(path), CHUNK_BYTES)
    return open(path, "rb", buffering=CHUNK_BYTES)


class Lines:
  """Reads a text file some lines at a time, and counts them.

  Attributes:
    path: the file.
    taken: how many lines have been read so far.
  """

  def __init__(self, path: Path, notices: list[str]):
    self.path = path
    self.taken = 0
    self._notices = notices
    self._is_utf8 = True
    self._file = open_bytes(path)

  def __enter__(self) -> "Lines":
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def close(self) -> None:
    self._file.close()

  def take(self, num: int | None = None) -> list[bytes]:
    """Returns the next lines without line ends: about CHUNK_BYTES, at most `num`; none at the end."""
    lines: list[bytes] = []
    left = CHUNK_BYTES
    with reading(self.path, self.taken):
      while left > 0 and len(lines) != num and (line := self._file.readline(MAX_LINE_BYTES + 1)):
        if len(line) > MAX_LINE_BYTES:
          expected = f"lines of at most {MAX_LINE_BYTES >> 20} MiB"
          raise refusal(self.path, self.taken + len(lines) + 1, expected, line)
        lines.append(line)
        left -= len(line)
    if lines and not self.taken:
      lines[0] = self._without_mark(lines[0])
    self.taken += len(lines)
    return [line.rstrip(b"\r\n") for line in lines]

  def take_text(self) -> list[str]:
    """Returns the same as `take()`, decoded."""
    first = self.taken + 1
    lines = self.take()
    try:
      return b"\n".join(lines).decode("utf-8").split("\n") if lines else []
    except UnicodeDecodeError:
      return [self._decode(line, first + offset) for offset, line in enumerate(lines)]

  def chunks(self) -> Iterator[tuple[int, list[str]]]:
    """Yields all remaining lines, decoded, as (number of the first line, lines)."""
    while True:
      first = self.taken + 1
      texts = self.take_text()
      if not texts:
        return
      yield first, texts

  def _decode(self, line: bytes, number: int) -> str:
    try:
      return line.decode("utf-8")
    except UnicodeDecodeError:
      if self._is_utf8:
        self._is_utf8 = False
        self._notices.append(f"{self.path.name}: not UTF-8 from line {number} on; such lines read as latin-1")
      return line.decode("latin-1")

  def _without_mark(self, line: bytes) -> bytes:
    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
      raise refusal(self.path, 1, "UTF-8 text, found a UTF-16 byte order mark")
    return line.removeprefix(b"\xef\xbb\xbf")


def text_chunks(path: Path, notices: list[str]) -> Iterator[list[str]]:
  """Yields the texts of a file with one text per line."""
  with Lines(path, notices) as lines:
    for _, texts in lines.chunks():
      yield texts


def keyed_text_chunks(path: Path, notices: list[str], ids: bool = False) -> Iterator[list[str]]:
  """Yields the texts of "id->text", "id<tab>text" or bare text lines; the first line decides which.

  With `ids`, yields the ids instead, and none of bare text lines.
  """
  mark = None
  with Lines(path, notices) as lines:
    for first, texts in lines.chunks():
      if first == 1:
        mark = next((mark for mark in ("->", "\t") if mark in texts[0]), None)
      if mark is not None:
        pairs = [_parted(mark, text, path, first + offset) for offset, text in enumerate(texts)]
        texts = [pair[not ids] for pair in pairs]
      elif ids:
        return
      yield texts


def _parted(mark: str, line: str, path: Path, number: int) -> tuple[str, str]:
  key, found, text = line.partition(mark)
  if not found:
    raise refusal(path, number, f"an id, {mark!r} and a text, as on line 1", line)
  return key, text


def anywhere(*names: str) -> tuple[str, ...]:
  """Returns these names in each folder that may contain text files."""
  return tuple(folder + name for folder in ("", "raw/", "raw_data/") for name in names)


def find(folder: Path, *names: str) -> Path | None:
  """Returns the first of these names that the folder contains, plain or with `.gz`; None if none."""
  for name in names:
    for path in (folder / name, folder / f"{name}.gz"):
      if path.is_file():
        return path
  return None


def need(folder: Path, *names: str, beside: Path) -> Path:
  """Returns the same as `find`; raises DataError if no file is found next to the existing `beside`."""
  path = find(folder, *names)
  if path is None:
    raise DataError(f"{folder}: {' or '.join(names)} (or .gz) is missing beside {beside.name}")
  return path
