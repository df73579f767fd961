"""Remembers labelled texts that a run is told after its training; its parameters stay as they are.

A text's labels are votes in the hybrid ranking from then on. The file `run_folder.LEARNT` has all such texts.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import scipy.sparse as sp

from xmc_jax import data
from xmc_jax.console import say
from xmc_jax.data import Dataset
from xmc_jax.data.added import vocabulary_of
from xmc_jax.data.arrays import well_formed
from xmc_jax.data.formats.label_ids import Vocabulary
from xmc_jax.distributed import runtime
from xmc_jax.errors import UserError
from xmc_jax.retrieval.grown import Rows
from xmc_jax.retrieval.hybrid import HybridRanker
from xmc_jax.retrieval.sources import Queries
from xmc_jax.runs import corpora, given_labels
from xmc_jax.storage import locks, run_folder
from xmc_jax.storage.journal import Batch, Journal, without

if TYPE_CHECKING:
  from xmc_jax.runs.trained import Trained

LOCK = ".learn.lock"
LEARNS = "is learning for this run; try again"
_SHOWN = 3
NewLabels = bool | Mapping[str, str]  # whether unknown labels are added; or the texts of those, by key


class Remembered(NamedTuple):
  """Holds what a run knows after some batches.

  Attributes:
    batches: their numbers of texts.
    dataset: with the labels that came with them.
    new_labels: the ids of these labels, by key and by text.
    rows: the rows of the ranker's memory that have their texts.
    ranker: None until it is needed.
  """

  batches: tuple[Sequence[int], ...]
  dataset: Dataset
  new_labels: dict[str, int]
  rows: dict[str, tuple[int, ...]]
  ranker: HybridRanker | None


class Learner:
  """Learns labelled texts for a run, and gives a ranker that remembers them.

  One thread may learn while others ask for `now`.

  Args:
    trained: the run.
    embed: `texts -> [n, D]`.
    base: opens the ranker of the run as it was trained.
  """

  def __init__(
    self,
    trained: "Trained",
    embed: Callable[[Sequence[str]], np.ndarray],
    base: Callable[["Trained"], HybridRanker],
  ):
    self._trained, self._embed, self._open_base = trained, embed, base
    self._workdir, self._dataset = trained.run.workdir, trained.run.dataset
    self._journal = Journal(self._workdir / run_folder.LEARNT)
    self._own = Remembered((), self._dataset, {}, {}, None)
    self._now: Remembered | None = None
    self._one_at_a_time = threading.RLock()
    self._vectors: dict[str, np.ndarray] = {}
    self._own_hashes: np.ndarray | None = None

  def now(self, opened: bool = False) -> Remembered:
    """Returns what was learnt until now, by other processes, too; `opened` has a ranker."""
    now = self._now
    if now is None or not self._journal.is_current or (opened and not now.ranker):
      with self._one_at_a_time:
        self._journal.reread()
        if opened and not self._own.ranker:
          self._own, self._now = self._own._replace(ranker=self._open_base(self._trained)), None
        now = self._now = self._after_all()
    return now

  def learn(
    self, texts: Sequence[str], labels: Sequence[Iterable[str]], new_labels: NewLabels = False
  ) -> np.ndarray:
    """Learns texts; see `Model.learn`."""
    named, plain = given_labels.checked(texts, labels), well_formed(list(texts))
    with self._locked() as now:
      keys, new = self._keys(named, now, new_labels)
      if not plain:
        return np.zeros(0, np.int64)
      first = self._journal.next_id
      batch = Batch(list(range(first, first + len(plain))), plain, keys, new)
      question = self._doubt(batch) if len(plain) >= given_labels.FEWEST else ""
      learnt = self._after(self._now or now, [batch])
      self._journal.append(batch)
      self._now = learnt
    if question:
      say(f"note: {question}")
    return np.array(batch.ids, np.int64)

  def _doubt(self, batch: Batch) -> str:
    """Returns what speaks against the labels of texts that are not learnt yet; '' if nothing does."""
    now = self.now(opened=True)
    id_of = self._ids_of({key for of_text in batch.labels for key in of_text}, now)
    own = self._own_rows(set(batch.texts))
    rows = [row for row, text in enumerate(batch.texts) if not own[text] and text not in now.rows]
    texts = [batch.texts[row] for row in rows]
    labels = [[id_of[key] for key in batch.labels[row] if key in id_of] for row in rows]
    queries = Queries(self._embedded(texts), texts)
    return given_labels.doubt(cast(HybridRanker, now.ranker), queries, labels, now.dataset.num_labels)

  def unlearn(self, ids: Iterable[int]) -> None:
    """Forgets texts for good; see `Model.unlearn`."""
    numbers = {int(one) for one in ids}
    with self._locked():
      text_of = {one: text for batch in self._journal.batches for one, text in zip(batch.ids, batch.texts)}
      if unknown := sorted(numbers - text_of.keys()):
        raise UserError(f"{self._workdir}: no text was learnt with the number {unknown[0]}")
      self._keep(without(self._journal.batches, {text_of[one] for one in numbers}))

  def undo(self) -> int:
    """Forgets the texts that were learnt last, together; returns how many."""
    with self._locked():
      if not self._journal.batches:
        raise UserError(f"{self._workdir}: nothing was learnt, so nothing can be undone")
      *left, last = self._journal.batches
      self._keep(without(left, set()))
    return len(last.ids)

  def _keep(self, batches: Sequence[Batch]) -> None:
    """Forgets what is in no batch."""
    self._journal.replace(batches)
    left = {text for batch in batches for text in batch.texts}
    self._vectors = {text: vector for text, vector in self._vectors.items() if text in left}
    self._now = self._after_all()

  @contextlib.contextmanager
  def _locked(self) -> Iterator[Remembered]:
    """Refuses a process that learns while another does; gives what others have learnt until now."""
    if not runtime.is_alone():
      raise UserError("several processes cannot learn together; learn with one")
    with self._one_at_a_time, locks.in_use(self._workdir, LOCK, LEARNS):
      yield self.now()

  @functools.cached_property
  def _vocabulary(self) -> Vocabulary:
    return vocabulary_of(self._dataset)

  def _keys(
    self, labels: Sequence[Sequence[str]], now: Remembered, added: NewLabels
  ) -> tuple[list[list[str]], dict[str, str]]:
    """Returns the keys of labels, and by key the texts of new ones; refuses others that are unknown."""
    prepared = self._dataset.manifest["counts"]["labels"]["texts"]
    keys, new, unknown = {}, {}, []
    texts = given_labels.plain(added) if isinstance(added, Mapping) else {}
    for label in dict.fromkeys(label for of_text in labels for label in of_text):
      plain = " ".join(label.split())
      found = self._vocabulary.id_of(label.strip())
      found = now.new_labels.get(plain) if found is None else found
      if found is not None:
        keys[label] = now.dataset.label_keys[found]
        if found >= prepared and found not in now.new_labels.values():  # added for this process until now
          new[keys[label]] = now.dataset.labels.texts[found]
      elif plain in texts or (plain and added is True):
        keys[label] = plain
        new[plain] = texts.get(plain, plain)
      else:
        unknown.append(label)
    if unknown:
      shown = ", ".join(f"{label!r:.80}" for label in unknown[:_SHOWN])
      raise UserError(f"labels that the run lacks: {len(unknown):,}, such as {shown}; nothing was learnt")
    return [[keys[label] for label in of_text] for of_text in labels], new

  def _after_all(self) -> Remembered:
    """Returns what is known after all batches of the journal; only those are new that `now` has not."""
    now, batches = self._now or self._own, self._journal.batches
    known = len(now.batches)
    if now.batches != tuple(batch.ids for batch in batches[:known]):
      now, known = self._own, 0
    return self._after(now, batches[known:])

  def _after(self, now: Remembered, batches: Sequence[Batch]) -> Remembered:
    """Returns what is known after more batches."""
    if not batches:
      return now
    new = {key: text for batch in batches for key, text in batch.new_labels.items()}
    now = self._with_labels(now, new) if new else now
    now = now._replace(batches=(*now.batches, *(batch.ids for batch in batches)))
    texts = [text for batch in batches for text in batch.texts]
    labels = [of_text for batch in batches for of_text in batch.labels]
    return self._with_texts(now, now.ranker, texts, labels) if texts and now.ranker else now

  def _with_labels(self, now: Remembered, labels: Mapping[str, str]) -> Remembered:
    """Returns what has these labels, too; those that were added for this process are there already."""
    there = self._ids_of(set(labels), now)
    texts = {key: text for key, text in labels.items() if key not in there}
    dataset, ranker, new = now.dataset, now.ranker, list(texts.values())
    if texts:
      most = self._trained.run.config.data.max_length
      dataset = data.with_labels(dataset, new, most, list(texts))
      ranker = ranker and ranker.with_labels(corpora.new_label_vectors(self._trained, new), new)
    ids = there | {key: now.dataset.num_labels + number for number, key in enumerate(texts)}
    by_text = {text: ids[key] for key, text in labels.items()}
    return now._replace(dataset=dataset, ranker=ranker, new_labels=now.new_labels | by_text | ids)

  def _with_texts(
    self, now: Remembered, ranker: HybridRanker, texts: Sequence[str], labels: Sequence[Sequence[str]]
  ) -> Remembered:
    """Returns what remembers these texts, too; a known one has them in place of its own labels.

    A text that the run has several times over, such as a title of many books, is one more of these. Without
    labels a text is forgotten.
    """
    id_of = self._ids_of({key for of_text in labels for key in of_text}, now)
    ids = [[id_of[key] for key in dict.fromkeys(of_text) if key in id_of] for of_text in labels]
    own, rows = self._own_rows(set(texts)), dict(now.rows)
    kept: dict[int, int] = {}  # row of the memory -> number of the text
    gone: set[int] = set()
    for number, text in enumerate(texts):
      if labels[number] and not ids[number]:
        continue  # its labels were added for an earlier process
      if len(own[text]) < 2 or not labels[number]:
        gone |= {*own[text], *rows.pop(text, ())}
      if ids[number]:
        row = len(ranker.point_texts) + len(kept)
        kept[row], rows[text] = number, (*rows.get(text, ()), row)
    new = [texts[number] for number in kept.values()]
    truth = _truth([ids[number] for number in kept.values()], now.dataset.num_labels)
    learnt = Rows(self._embedded(new), new, truth)
    return now._replace(ranker=ranker.remembering(learnt, np.array(sorted(gone), np.int64)), rows=rows)

  def _ids_of(self, keys: set[str], now: Remembered) -> dict[str, int]:
    """Returns the labels that have these keys; one that was added for an earlier process may be missing."""
    if "_vocabulary" in self.__dict__:
      own = {key: self._vocabulary.id_of(key.strip()) for key in keys}
      found = {key: label for key, label in own.items() if label is not None}
    else:  # reversed, for the first of several
      labels = enumerate(self._dataset.label_keys)
      found = dict(reversed([(key, label) for label, key in labels if key in keys]))
    return {key: label for key, label in now.new_labels.items() if key in keys} | found

  def _embedded(self, texts: Sequence[str]) -> np.ndarray:
    """Returns `[n, D]` vectors of texts; those of learnt texts are computed once."""
    if not texts:
      return self._embed([""])[:0]
    if missing := [text for text in texts if text not in self._vectors]:
      self._vectors |= dict(zip(missing, self._embed(missing)))
    return np.stack([self._vectors[text] for text in texts])

  def _own_rows(self, texts: set[str]) -> dict[str, list[int]]:
    """Returns the rows of the run's own memory with each of these texts."""
    own = cast(HybridRanker, self._own.ranker).point_texts
    rows: dict[str, list[int]] = {text: [] for text in texts}
    if self._own_hashes is None:
      self._own_hashes = np.fromiter(map(hash, own), np.int64, len(own))
    for row in np.flatnonzero(np.isin(self._own_hashes, list(map(hash, texts)))).tolist():
      rows.get(own[row], []).append(row)
    return rows


def _truth(ids: Sequence[Sequence[int]], num_labels: int) -> sp.csr_matrix:
  indptr = np.concatenate([[0], np.cumsum(list(map(len, ids)), dtype=np.int64)])
  columns = np.array([label for of_text in ids for label in sorted(of_text)], np.int64)
  return sp.csr_matrix((np.ones(len(columns), np.float32), columns, indptr), (len(ids), num_labels))
