"""Keeps what a run has learnt: a file with a line for each batch of labelled texts.

A batch is appended and flushed to the disk before it counts. A line that a kill cut short counts for nothing.
"""

import contextlib
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from xmc_jax.errors import DataError
from xmc_jax.storage import atomic


class Batch(NamedTuple):
  """Holds n texts that were learnt together.

  Attributes:
    ids: their numbers.
    texts: n texts.
    labels: the keys of each one's labels.
    new_labels: by key, the texts of labels that came with them.
  """

  ids: Sequence[int]
  texts: Sequence[str]
  labels: Sequence[Sequence[str]]
  new_labels: Mapping[str, str] = MappingProxyType({})


class Journal:
  """Keeps batches in a file, one line each; what was written is on the disk.

  Attributes:
    batches: those that count, in the order in which they came.
    next_id: the number of the next text; none is given twice.
  """

  def __init__(self, path: pathlib.Path):
    self._path = path
    self._state: tuple[int, ...] = ()
    self._size = self.next_id = 0
    self.batches: list[Batch] = []
    self.reread()

  @property
  def is_current(self) -> bool:
    """Returns whether the file is as it was read or written last."""
    return _state_of(self._path) == self._state

  def reread(self) -> bool:
    """Reads the file, without a last line that has no end; returns whether another process has changed it.

    Raises:
      DataError: it is no plain file, or a line is damaged.
    """
    if (state := _state_of(self._path)) == self._state:
      return False
    lines = self._content().split(b"\n")[:-1]
    batches, next_id = [], 0
    for number, line in enumerate(lines, 1):
      try:
        batch, least = _read(line)
      except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{self._path}, line {number}: not readable ({error}); delete the line") from None
      next_id = max([next_id, least, *(1 + one for one in batch.ids)])
      batches += [batch] if batch.ids or batch.new_labels else []
    self.batches, self.next_id, self._state = batches, next_id, state
    self._size = sum(map(len, lines)) + len(lines)
    return True

  def append(self, batch: Batch) -> None:
    """Writes a batch behind the others.

    Raises:
      UserError: the disk is full, or may not be written; the file is as before.
    """
    line = _line(batch).encode()
    with atomic.writing(self._path):
      is_new = not self._path.exists()
      file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
      try:
        os.ftruncate(file, self._size)  # without what a kill left
        written = 0
        while written < len(line):
          written += os.write(file, line[written:])
        os.fsync(file)
      except OSError:
        with contextlib.suppress(OSError):
          os.ftruncate(file, self._size)
        raise
      finally:
        os.close(file)
      if is_new:
        atomic.flush(self._path.parent)
    self._size += len(line)
    self._state, self.next_id = _state_of(self._path), max(self.next_id, 1 + max(batch.ids))
    self.batches.append(batch)

  def replace(self, batches: Sequence[Batch]) -> None:
    """Writes other batches in place of all; nothing of the old ones is left in the file."""
    self._content()  # refuses a link
    content = json.dumps({"next_id": self.next_id}) + "\n" + "".join(map(_line, batches))
    atomic.write_text(self._path, content, durable=True)
    self._size, self.batches, self._state = len(content.encode()), list(batches), _state_of(self._path)

  def _content(self) -> bytes:
    if not atomic.is_plain_file(self._path):
      raise DataError(f"{self._path}: expected a plain file")
    try:
      return self._path.read_bytes()
    except FileNotFoundError:
      return b""
    except OSError as error:
      raise DataError(f"{self._path}: not readable ({error.strerror})") from None


def _line(batch: Batch) -> str:
  fields = {**batch._asdict(), "new_labels": dict(batch.new_labels)}
  return json.dumps(fields) + "\n"


def _read(line: bytes) -> tuple[Batch, int]:
  """Returns a line's batch, and the least number that later texts may have; refuses what it cannot be."""
  found = json.loads(line)
  if "next_id" in found:
    return Batch([], [], []), int(found["next_id"])
  batch = Batch(found["ids"], found["texts"], found["labels"], found.get("new_labels", {}))
  keys = [key for of_text in batch.labels for key in of_text]
  if not (
    len(batch.ids) == len(batch.texts) == len(batch.labels)
    and all(type(one) is int for one in batch.ids)
    and all(isinstance(of_text, list) for of_text in batch.labels)
    and all(isinstance(text, str) for text in [*batch.texts, *keys, *batch.new_labels.values()])
  ):
    raise ValueError("expected numbers, texts and lists of labels, as many of each")
  return batch, 0


def _state_of(path: pathlib.Path) -> tuple[int, ...]:
  """Returns what changes if a file is written; () if there is none."""
  with contextlib.suppress(OSError):
    found = path.stat(follow_symlinks=False)
    return found.st_ino, found.st_size, found.st_mtime_ns
  return ()


def without(batches: Sequence[Batch], gone: set[str]) -> list[Batch]:
  """Returns what is left of batches without these texts, and without new labels that no text has then."""
  left = []
  for batch in batches:
    rows = [row for row, text in enumerate(batch.texts) if text not in gone]
    of_rows = [(batch.ids[row], batch.texts[row], batch.labels[row]) for row in rows]
    ids, texts, labels = zip(*of_rows) if rows else ((), (), ())
    left.append(Batch(ids, texts, labels, batch.new_labels))
  used = {key for batch in left for of_text in batch.labels for key in of_text}
  named = [
    batch._replace(new_labels={key: text for key, text in batch.new_labels.items() if key in used})
    for batch in left
  ]
  return [batch for batch in named if batch.ids or batch.new_labels]
