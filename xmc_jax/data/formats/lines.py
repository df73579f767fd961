"""Opening files, plain or gzip, and decoding their lines.

Whatever a file holds, and however small it was packed, no more of it is held at a time than CHUNK_BYTES and
one line; a line longer than MAX_LINE_BYTES is refused. What a line is parsed into (lists, small numbers) may
take some forty times its room.
"""

import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path

from xmc_jax.data.formats.source import one_line, refusal
from xmc_jax.errors import DataError

# Large enough to keep the tokenizer's threads busy, small enough that long documents stay bounded.
CHUNK_BYTES = 1 << 19
CHUNK_ROWS = 8192
# Far more than any text that a tokenizer cuts to some hundred tokens.
MAX_LINE_BYTES = 1 << 24


@contextlib.contextmanager
def reading(path: Path, after_line: int | None = None) -> Iterator[None]:
  """Turns what can go wrong while a file is read into one line."""
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


def open_bytes(path: Path) -> io.BufferedIOBase:
  """The file's bytes, unpacked where its name ends in `.gz`."""
  with reading(path):
    if path.suffix == ".gz":
      return io.BufferedReader(gzip.open(path), CHUNK_BYTES)
    return open(path, "rb", buffering=CHUNK_BYTES)


class Lines:
  """A text file, taken some lines at a time; remembers where it is.

  Attributes:
    path: the file.
    taken: how many lines have been taken so far.
  """

  def __init__(self, path: Path, notices: list[str]):
    self.path = path
    self.taken = 0
    self._notices = notices
    self._is_utf8 = True
    self._file = open_bytes(path)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()

  def close(self) -> None:
    self._file.close()

  def take(self, num: int | None = None) -> list[bytes]:
    """The next lines without their ends: about CHUNK_BYTES of them, `num` at most; none at the end."""
    lines, left = [], CHUNK_BYTES
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

  def take_text(self, num: int | None = None) -> list[str]:
    """As `take`, decoded."""
    first = self.taken + 1
    lines = self.take(num)
    try:
      return b"\n".join(lines).decode("utf-8").split("\n") if lines else []
    except UnicodeDecodeError:
      return [self._decode(line, first + offset) for offset, line in enumerate(lines)]

  def chunks(self) -> Iterator[tuple[int, list[str]]]:
    """All remaining lines, decoded: (number of the first one, lines)."""
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
  """A file of one text a line."""
  with Lines(path, notices) as lines:
    for _, texts in lines.chunks():
      yield texts


def keyed_text_chunks(path: Path, notices: list[str]) -> Iterator[list[str]]:
  """A file of one "id->text" or "id<tab>text" a line, or of bare texts: the first line decides."""
  mark = None
  with Lines(path, notices) as lines:
    for first, texts in lines.chunks():
      if first == 1:
        mark = next((mark for mark in ("->", "\t") if mark in texts[0]), None)
      if mark is not None:
        texts = [_after(mark, text, path, first + offset) for offset, text in enumerate(texts)]
      yield texts


def _after(mark: str, line: str, path: Path, number: int) -> str:
  _, found, text = line.partition(mark)
  if not found:
    raise refusal(path, number, f"an id, {mark!r} and a text, as on line 1", line)
  return text


def anywhere(*names: str) -> tuple[str, ...]:
  """These names in the folders where text files are kept."""
  return tuple(folder + name for folder in ("", "raw/", "raw_data/") for name in names)


def find(folder: Path, *names: str) -> Path | None:
  """The first of these names that the folder holds, plain or with `.gz`."""
  for name in names:
    for path in (folder / name, folder / f"{name}.gz"):
      if path.is_file():
        return path
  return None


def need(folder: Path, *names: str, beside: Path) -> Path:
  """As `find`; a missing file is refused, naming the one that made us look for it."""
  path = find(folder, *names)
  if path is None:
    raise DataError(f"{folder}: {' or '.join(names)} (or .gz) is missing beside {beside.name}")
  return path
