"""Remembers labelled texts that a run is told after its training; its parameters stay as they are.

A text's labels are votes in the hybrid ranking from then on. The file LEARNT in the run's folder has a line
for each batch, appended and flushed to the disk before it counts. A line that a kill cut short counts for
nothing.
"""

import contextlib
import functools
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from xmc_jax.data import Dataset
from xmc_jax.data.added import vocabulary_of
from xmc_jax.data.arrays import well_formed
from xmc_jax.data.formats.label_ids import Vocabulary
from xmc_jax.errors import DataError, UserError
from xmc_jax.retrieval import grown
from xmc_jax.retrieval.hybrid import HybridRanker
from xmc_jax.retrieval.sources import Queries
from xmc_jax.storage import atomic, locks, path_safety

LEARNT = "learnt.jsonl"
_LOCK = ".learn.lock"
_LEARNS = "is learning for this run; try again"
_SHOWN = 3


class Batch(NamedTuple):
  """Holds n texts that were learnt together: their ids, and the keys of each one's labels."""

  ids: Sequence[int]
  texts: Sequence[str]
  labels: Sequence[Sequence[str]]


class Journal:
  """Keeps batches in a file, one line each; what was written is on the disk.

  Attributes:
    batches: those that count, in the order in which they came.
  """

  def __init__(self, path: pathlib.Path):
    self._path = path
    self.batches: list[Batch] = []
    self._size = 0
    self._state: tuple[int, ...] = ()
    self.reread()

  def reread(self) -> bool:
    """Reads the file, without a last line that has no end; returns whether another process has changed it.

    Raises:
      DataError: a line is damaged.
    """
    if (state := _state_of(self._path)) == self._state:
      return False
    content = b""
    with contextlib.suppress(FileNotFoundError):
      content = self._path.read_bytes()
    self._state = state
    lines = content.split(b"\n")[:-1]
    self._size, self.batches = content.rfind(b"\n") + 1, []
    for number, line in enumerate(lines, 1):
      try:
        found = json.loads(line)
        batch = Batch(found["ids"], found["texts"], found["labels"])
        if not len(batch.ids) == len(batch.texts) == len(batch.labels):
          raise ValueError("its lists differ in length")
      except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{self._path}, line {number}: not readable ({error}); delete the line") from None
      self.batches.append(batch)
    return True

  @property
  def next_id(self) -> int:
    return 1 + max((max(batch.ids, default=-1) for batch in self.batches), default=-1)

  def append(self, batch: Batch) -> None:
    """Writes a batch behind the others.

    Raises:
      UserError: the disk is full, or may not be written; the file is as before.
    """
    line = _line(batch)
    path_safety.check(self._path)
    with atomic.writing(self._path), self._path.open("ab") as file:
      file.truncate(self._size)  # without what a kill left
      try:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
      except OSError:
        with contextlib.suppress(OSError):
          file.truncate(self._size)
        raise
    self._size += len(line)
    self._state = _state_of(self._path)
    self.batches.append(batch)

  def replace(self, batches: Sequence[Batch]) -> None:
    """Writes other batches in place of all; nothing of the old ones is left in the file."""
    content = b"".join(map(_line, batches))
    with atomic.written_whole(self._path, durable=True) as beside:
      beside.write_bytes(content)
    self._size, self.batches, self._state = len(content), list(batches), _state_of(self._path)


def _state_of(path: pathlib.Path) -> tuple[int, ...]:
  """Returns what changes if a file is written; () if there is none."""
  with contextlib.suppress(OSError):
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns
  return ()


def _line(batch: Batch) -> bytes:
  return json.dumps(batch._asdict()).encode() + b"\n"


class Learner:
  """Learns labelled texts for a run, and gives rankers that remember them.

  Args:
    workdir: the run's folder.
    dataset: its data.
    embed: `texts -> [n, D]`.
    base: the ranker of the run as it was trained.

  Attributes:
    ranker: `base`, with what was learnt.
  """

  def __init__(
    self,
    workdir: pathlib.Path,
    dataset: Dataset,
    embed: Callable[[Sequence[str]], np.ndarray],
    base: HybridRanker,
  ):
    self._workdir, self._dataset, self._embed, self._base = workdir, dataset, embed, base
    self._journal = Journal(workdir / LEARNT)
    self._replay()

  @functools.cached_property
  def _vocabulary(self) -> Vocabulary:
    return vocabulary_of(self._dataset)

  def learn(self, texts: Sequence[str], labels: Sequence[Iterable[str]]) -> np.ndarray:
    """Learns texts; see `Model.learn`."""
    named, plain = self._keys(texts, labels), well_formed(list(texts))
    if not plain:
      return np.zeros(0, np.int64)
    vectors = self._embed(plain)
    with self._alone():
      first = self._journal.next_id
      batch = Batch(list(range(first, first + len(plain))), plain, named)
      self._journal.append(batch)
      self._remember(batch, vectors)
    return np.array(batch.ids, np.int64)

  def unlearn(self, ids: Iterable[int]) -> None:
    """Forgets texts for good; see `Model.unlearn`."""
    gone = set(map(int, ids))
    with self._alone():
      if unknown := sorted(gone - {one for batch in self._journal.batches for one in batch.ids}):
        raise UserError(f"{self._workdir}: no text was learnt with the number {unknown[0]}")
      left = [_without(batch, gone) for batch in self._journal.batches]
      self._journal.replace([batch for batch in left if batch.ids])
      self._replay()

  def undo(self) -> int:
    """Forgets the texts that were learnt last, together; returns how many."""
    with self._alone():
      if not self._journal.batches:
        raise UserError(f"{self._workdir}: nothing was learnt, so nothing can be undone")
      *left, last = self._journal.batches
      self._journal.replace(left)
      self._replay()
    return len(last.ids)

  @contextlib.contextmanager
  def _alone(self) -> Iterator[None]:
    """Refuses a process that learns while another does; reads what others have learnt until now."""
    with locks.in_use(self._workdir, _LOCK, _LEARNS):
      if self._journal.reread():
        self._replay()
      yield

  def _keys(self, texts: Sequence[str], labels: Sequence[Iterable[str]]) -> list[list[str]]:
    """Returns the keys of labels, which may be named by key, name or notation; refuses unknown ones."""
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
      raise UserError("texts: give a list of texts")
    if len(texts) != len(labels) or any(isinstance(of_text, str) for of_text in labels):
      raise UserError(f"labels: give a list of labels for each of the {len(texts):,} texts")
    known = self._dataset.label_keys
    keys: list[list[str]] = []
    unknown: dict[str, None] = {}
    for of_text in labels:
      ids = {label: self._vocabulary.id_of(label) for label in of_text}
      unknown |= {label: None for label, found in ids.items() if found is None}
      keys.append([known[found] for found in ids.values() if found is not None])
    if unknown:
      shown = ", ".join(f"{label!r:.80}" for label in list(unknown)[:_SHOWN])
      raise UserError(f"labels that the run lacks: {len(unknown):,}, such as {shown}; nothing was learnt")
    return keys

  def _replay(self) -> None:
    """Remembers all batches anew."""
    self.ranker = self._base
    if batches := self._journal.batches:
      ids, texts, labels = (list(chain.from_iterable(parts)) for parts in zip(*batches))
      self._remember(Batch(ids, texts, labels), self._embed(texts))

  def _remember(self, batch: Batch, vectors: np.ndarray) -> None:
    """Makes a ranker that has the texts, in place of known ones."""
    known = self.ranker.rows_of(Queries(vectors, batch.texts))
    last = {text: number for number, text in enumerate(batch.texts)}
    rows = np.array([number for number in last.values() if batch.labels[number]], np.int64)
    texts = [batch.texts[row] for row in rows]
    truth = self._truth([batch.labels[row] for row in rows])
    self.ranker = self.ranker.remembering(grown.Rows(vectors[rows], texts, truth), known)

  def _truth(self, labels: Sequence[Sequence[str]]) -> sp.csr_matrix:
    ids = [sorted(set(self._vocabulary.ids_of(of_text))) for of_text in labels]
    indptr = np.concatenate([[0], np.cumsum(list(map(len, ids)), dtype=np.int64)])
    columns = np.array([label for of_text in ids for label in of_text], np.int64)
    shape = len(labels), self._dataset.num_labels
    return sp.csr_matrix((np.ones(len(columns), np.float32), columns, indptr), shape)


def _without(batch: Batch, gone: set[int]) -> Batch:
  left = [row for row in zip(*batch) if row[0] not in gone]
  return Batch([row[0] for row in left], [row[1] for row in left], [row[2] for row in left])
