"""Opens files, plain or compressed, and decodes their lines.

At most CHUNK_BYTES plus one line of a file are in memory at a time, however well the file is compressed.
A line longer than MAX_LINE_BYTES is refused. The parsed result of a line (lists, small numbers) may take
about forty times the memory of the line.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, BinaryIO, TextIO

from xmc_jax.data.formats.source import DEFAULTS, KeyedTexts, Options, excerpt, one_line, refusal
from xmc_jax.errors import ConfigError, DataError, UserError

# Large enough to keep the tokenizer's threads busy, small enough to bound the memory for long documents.
CHUNK_BYTES = 1 << 19
CHUNK_ROWS = 8192
# Far longer than the text of a document that a tokenizer truncates to a few hundred tokens.
MAX_LINE_BYTES = 1 << 24
PACKED = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zip": "zip"}
"""Names what a compressed file is packed with, by the end of its name."""
STANDARD_INPUT = Path("standard input")
"""Is standard input for `open_bytes`, which compares objects: a file of this name is a file."""
# Compression makes matrices of targets and edges ten times smaller, and zeros a thousand times.
_MOST_UNPACKED, _MOST_RATIO = 1 << 28, 100
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


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
    expected = f"more {PACKED.get(path.suffix, 'packed')} data, found the end (a truncated download?)"
    raise DataError(f"{where}: expected {expected}") from None
  except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, zipfile.BadZipFile, RuntimeError) as error:
    if path.suffix not in PACKED:  # an .npz, whose reader says what was expected
      raise
    raise DataError(f"{where}: expected intact {PACKED[path.suffix]} data ({error})") from None
  except UnicodeError as error:
    expected = f"text in the encoding of --config.data.encoding ({one_line(error)})"
    raise DataError(f"{where}: expected {expected}") from None
  except OSError as error:
    raise DataError(f"{where}: cannot be read ({error.strerror or one_line(error)})") from None


@contextlib.contextmanager
def expecting(path: Path, expected: str) -> Iterator[None]:
  """Turns what a library raises into a one-line DataError: a damaged file can fail in any of its layers."""
  try:
    yield
  except (UserError, MemoryError):
    raise
  except Exception as error:
    raise DataError(f"{path}: expected {expected} ({one_line(error)})") from None


def open_bytes(path: Path) -> io.BufferedReader:
  """Opens a file, or STANDARD_INPUT, for reading bytes; decompresses it if its name ends as in PACKED."""
  if path is STANDARD_INPUT:  # a stream that replaces it may have no bytes
    return io.BufferedReader(getattr(sys.stdin, "buffer", None) or io.BytesIO(sys.stdin.read().encode()))
  openers: dict[str, Callable] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zip": _open_zip}
  with reading(path):
    return io.BufferedReader(openers.get(path.suffix, io.FileIO)(path), CHUNK_BYTES)


def _open_zip(path: Path) -> IO[bytes]:
  archive = zipfile.ZipFile(path)
  names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
  if len(names) != 1:
    raise DataError(f"{path}: expected one file in the archive, found {len(names)}; unpack it")
  return archive.open(names[0])


def _open_utf8(path: Path, encoding: str) -> tuple[Callable[[int], bytes], BinaryIO | TextIO]:
  """Opens a file; returns a function that reads a line of it, at most so long, as UTF-8, and the file."""
  file = open_bytes(path)
  with reading(path, 0):
    if not encoding and file.peek(2)[:2] in _UTF16_MARKS:
      encoding = "utf-16"
  if not encoding:
    return file.readline, file
  try:
    text = io.TextIOWrapper(file, encoding, newline="\n")
  except (LookupError, ValueError):
    file.close()
    name = f"--config.data.encoding={excerpt(encoding)}"
    raise ConfigError(f"{name}: expected an encoding that Python knows, such as cp1252") from None
  return lambda size: text.readline(size).encode("utf-8", "surrogatepass"), text


class Lines(contextlib.AbstractContextManager["Lines"]):
  """Reads a text file some lines at a time; `taken` counts those that have been read so far."""

  def __init__(self, path: Path, notices: list[str], options: Options = DEFAULTS):
    self.path = path
    self.taken = 0
    self._notices = notices
    self._is_utf8 = True
    self._readline, self._file = _open_utf8(path, options.encoding)

  def __exit__(self, *_: object) -> None:
    self._file.close()

  def take(self, num: int | None = None) -> list[bytes]:
    """Returns the next lines without line ends: about CHUNK_BYTES, at most `num`; none at the end."""
    lines: list[bytes] = []
    left = CHUNK_BYTES
    with reading(self.path, self.taken):
      while left > 0 and len(lines) != num and (line := self._readline(MAX_LINE_BYTES + 1)):
        if len(line) > MAX_LINE_BYTES:
          expected = f"lines of at most {MAX_LINE_BYTES >> 20} MiB"
          raise refusal(self.path, self.taken + len(lines) + 1, expected, line)
        lines.append(line)
        left -= len(line)
    if lines and not self.taken:
      lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
    self.taken += len(lines)
    return [line.rstrip(b"\r\n") for line in lines]

  def take_text(self) -> list[str]:
    """Returns the same as `take()`, decoded."""
    first = self.taken + 1
    lines = self.take()
    if first == 1 and lines and b"\0" in lines[0]:
      raise refusal(self.path, 1, "UTF-8 (is it UTF-16? --config.data.encoding=utf-16-le)", lines[0])
    return [self._decode(line, number) for number, line in enumerate(lines, first)]

  def chunks(self) -> Iterator[tuple[int, list[str]]]:
    """Yields all remaining lines, decoded, as (number of the first line, lines)."""
    while texts := self.take_text():
      yield self.taken - len(texts) + 1, texts

  def _decode(self, line: bytes, number: int) -> str:
    try:
      return line.decode("utf-8")
    except UnicodeDecodeError:
      if self._is_utf8:
        self._is_utf8 = False
        change = "change with --config.data.encoding"
        found = f"not UTF-8 from line {number} on; such lines read as Windows' cp1252 ({change})"
        self._notices.append(f"{self.path.name}: {found}")
    try:
      return line.decode("cp1252")
    except UnicodeDecodeError:  # it leaves five bytes undefined
      return line.decode("latin-1")


def text_chunks(path: Path, notices: list[str], options: Options = DEFAULTS) -> Iterator[list[str]]:
  """Yields the texts of a file with one text per line."""
  with Lines(path, notices, options) as lines:
    for _, texts in lines.chunks():
      yield texts


def text_lines(path: Path, notices: list[str], options: Options = DEFAULTS) -> Iterator[KeyedTexts]:
  """Yields the texts of a file with one text per line.

  In `Yf.txt`, `*_map.txt` and `*.raw.txt` a line may be "id->text" or, except in the last, "id<tab>text"; the
  first line decides.
  """
  mark, marks = None, ("->",) if ".raw." in path.name else ("->", "\t")
  may_have_ids = path.name.startswith("Yf.") or "_map." in path.name or ".raw." in path.name
  with Lines(path, notices, options) as lines:
    for first, texts in lines.chunks():
      if first == 1 and may_have_ids:
        mark = next((mark for mark in marks if mark in texts[0]), None)
      if mark is None:
        yield KeyedTexts(texts)
      else:
        pairs = [_parted(mark, text, path, first + offset) for offset, text in enumerate(texts)]
        yield KeyedTexts([text for _, text in pairs], [key for key, _ in pairs])


def _parted(mark: str, line: str, path: Path, number: int) -> tuple[str, str]:
  key, found, text = line.partition(mark)
  if not found:
    raise refusal(path, number, f"an id, {mark!r} and a text, as on line 1", line)
  return key, text


def refuse_overpacked(path: Path, file: BinaryIO) -> None:
  """Raises ValueError if an opened zip file unpacks to far more than its size."""
  size = path.stat().st_size
  unpacked = sum(entry.file_size for entry in zipfile.ZipFile(file).infolist())
  file.seek(0)
  if unpacked > max(_MOST_UNPACKED, _MOST_RATIO * size):
    raise ValueError(f"{unpacked:,} bytes packed in {size:,}, more than {_MOST_RATIO} times as many")


def anywhere(*names: str) -> tuple[str, ...]:
  """Returns these names in each folder that may contain text files."""
  return tuple(folder + name for folder in ("", "raw/", "raw_data/") for name in names)


def find(folder: Path, *names: str) -> Path | None:
  """Returns the first of these names that the folder contains, plain or packed; None if none."""
  paths = (folder / f"{name}{end}" for name in names for end in ("", *PACKED))
  return next(filter(Path.is_file, paths), None)


def need(folder: Path, *names: str, beside: Path) -> Path:
  """Returns the same as `find`; raises DataError if no file is found next to the existing `beside`."""
  path = find(folder, *names)
  if path is None:
    shown = [name for name in names if "/" not in name or name.rpartition("/")[2] not in names]
    raise DataError(f"{folder}: {' or '.join(shown)} (or .gz) is missing beside {beside.name}")
  return path
