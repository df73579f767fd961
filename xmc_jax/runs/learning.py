"""Remembers labelled texts that a run is told after its training; its parameters stay as they are.

A text's labels are votes in the hybrid ranking from then on. The file `run_folder.LEARNT` has all such texts.
"""

import contextlib
import functools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np
import scipy.sparse as sp

from xmc_jax.data import Dataset
from xmc_jax.data.added import vocabulary_of
from xmc_jax.data.arrays import well_formed
from xmc_jax.data.formats.label_ids import Vocabulary
from xmc_jax.distributed import runtime
from xmc_jax.errors import UserError
from xmc_jax.retrieval.grown import Rows
from xmc_jax.retrieval.hybrid import HybridRanker
from xmc_jax.runs.best_labels import check_texts
from xmc_jax.storage import locks, run_folder
from xmc_jax.storage.journal import Batch, Journal, without

_LOCK = ".learn.lock"
_LEARNS = "is learning for this run; try again"
_SHOWN = 3


class Learner:
  """Learns labelled texts for a run, and gives a ranker that remembers them.

  Args:
    workdir: the run's folder.
    dataset: its data.
    embed: `texts -> [n, D]`.
    base: opens the ranker of the run as it was trained; called at the first use of `ranker`.
  """

  def __init__(
    self,
    workdir: pathlib.Path,
    dataset: Dataset,
    embed: Callable[[Sequence[str]], np.ndarray],
    base: Callable[[], HybridRanker],
  ):
    self._workdir, self._dataset, self._embed, self._open_base = workdir, dataset, embed, base
    self._journal = Journal(workdir / run_folder.LEARNT)
    self._base: HybridRanker | None = None
    self._remembered: _Remembered | None = None
    self._vectors: dict[str, np.ndarray] = {}
    self._own_hashes: np.ndarray | None = None

  @property
  def ranker(self) -> HybridRanker:
    """Returns the run's ranker, with what was learnt."""
    if self._remembered is None:
      self._remembered = self._replayed()
    return self._remembered.ranker

  def learn(self, texts: Sequence[str], labels: Sequence[Iterable[str]]) -> np.ndarray:
    """Learns texts; see `Model.learn`."""
    named, plain = self._known_keys(texts, labels), well_formed(list(texts))
    if not plain:
      return np.zeros(0, np.int64)
    with self._locked():
      first = self._journal.next_id
      batch = Batch(list(range(first, first + len(plain))), plain, named)
      remembered = self._with(self._remembered, batch) if self._remembered else None
      self._journal.append(batch)
      self._remembered = remembered
    return np.array(batch.ids, np.int64)

  def unlearn(self, ids: Iterable[int]) -> None:
    """Forgets texts for good; see `Model.unlearn`."""
    numbers = {int(one) for one in ids}
    with self._locked():
      text_of = {one: text for batch in self._journal.batches for one, text in zip(batch.ids, batch.texts)}
      if unknown := sorted(numbers - text_of.keys()):
        raise UserError(f"{self._workdir}: no text was learnt with the number {unknown[0]}")
      gone = {text_of[one] for one in numbers}
      self._keep([without(batch, gone) for batch in self._journal.batches])

  def undo(self) -> int:
    """Forgets the texts that were learnt last, together; returns how many."""
    with self._locked():
      if not self._journal.batches:
        raise UserError(f"{self._workdir}: nothing was learnt, so nothing can be undone")
      *left, last = self._journal.batches
      self._keep(left)
    return len(last.ids)

  def _keep(self, batches: Sequence[Batch]) -> None:
    """Forgets what is in no batch."""
    self._journal.replace([batch for batch in batches if batch.ids])
    left = {text for batch in self._journal.batches for text in batch.texts}
    self._vectors = {text: vector for text, vector in self._vectors.items() if text in left}
    self._replay()

  def _replay(self) -> None:
    """Lets a ranker that is open have what the journal has now; it is opened anew if that fails."""
    if self._remembered:
      self._remembered = None
      self._remembered = self._replayed()

  @contextlib.contextmanager
  def _locked(self) -> Iterator[None]:
    """Refuses a process that learns while another does; reads what others have learnt until now."""
    if not runtime.is_alone():
      raise UserError("several processes cannot learn together; learn with one")
    with locks.in_use(self._workdir, _LOCK, _LEARNS):
      if self._journal.reread():
        self._replay()
      yield

  @functools.cached_property
  def _vocabulary(self) -> Vocabulary:
    return vocabulary_of(self._dataset)

  def _known_keys(self, texts: Sequence[str], labels: Sequence[Iterable[str]]) -> list[list[str]]:
    """Returns the keys of labels, which may be named by key, name or notation; refuses unknown ones."""
    check_texts(texts)
    if len(texts) != len(labels) or any(
      isinstance(of_text, str) or not isinstance(of_text, Iterable) for of_text in labels
    ):
      raise UserError(f"labels: expected a list of labels for each of the {len(texts):,} texts")
    named = [list(of_text) for of_text in labels]
    if wrong := [label for of_text in named for label in of_text if not isinstance(label, str)]:
      raise UserError(f"labels: expected keys or names, found {wrong[0]!r:.80}")
    prepared = self._dataset.manifest["counts"]["labels"]["texts"]
    each = {label: self._vocabulary.id_of(label.strip()) for of_text in named for label in of_text}
    ids = {label: found for label, found in each.items() if found is not None and found < prepared}
    unknown = [label for label in each if label not in ids]
    if unknown:
      shown = ", ".join(f"{label!r:.80}" for label in unknown[:_SHOWN])
      raise UserError(f"labels that the run lacks: {len(unknown):,}, such as {shown}; nothing was learnt")
    return [[self._dataset.label_keys[ids[label]] for label in of_text] for of_text in named]

  def _replayed(self) -> "_Remembered":
    """Returns the run's own ranker with all batches."""
    self._base = self._base or self._open_base()
    own, batches = _Remembered(self._base, {}), self._journal.batches
    texts = [text for batch in batches for text in batch.texts]
    labels = [of_text for batch in batches for of_text in batch.labels]
    return self._with(own, Batch(range(len(texts)), texts, labels)) if texts else own

  def _with(self, before: "_Remembered", batch: Batch) -> "_Remembered":
    """Returns what remembers these texts, too, in place of known ones; without labels a text is forgotten."""
    id_of = self._ids_of({key for of_text in batch.labels for key in of_text})
    last = {text: number for number, text in enumerate(batch.texts)}
    ids = [[id_of[key] for key in dict.fromkeys(of_text) if key in id_of] for of_text in batch.labels]
    known = [row for row in sorted(last.values()) if ids[row] or not batch.labels[row]]
    texts = [batch.texts[row] for row in known]
    gone = [before.rows[text] for text in texts if text in before.rows] + self._own_rows(texts)
    kept = [row for row in known if ids[row]]
    new = [batch.texts[row] for row in kept]
    first = len(before.ranker.point_texts)
    rows = before.rows | {text: first + number for number, text in enumerate(new)}
    learnt = Rows(self._embedded(new), new, self._truth([ids[row] for row in kept]))
    return _Remembered(before.ranker.remembering(learnt, np.array(gone, np.int64)), rows)

  def _ids_of(self, keys: set[str]) -> dict[str, int]:
    """Returns the labels that have these keys; one that was added for an earlier process may be missing."""
    if "_vocabulary" in self.__dict__:
      ids = {key: self._vocabulary.id_of(key.strip()) for key in keys}
      return {key: label for key, label in ids.items() if label is not None}
    found = ((key, label) for label, key in enumerate(self._dataset.label_keys) if key in keys)
    return dict(reversed(list(found)))  # the first of several

  def _embedded(self, texts: Sequence[str]) -> np.ndarray:
    """Returns `[n, D]` vectors of texts; those of learnt texts are computed once."""
    if not texts:
      return self._embed([""])[:0]
    if missing := [text for text in texts if text not in self._vectors]:
      self._vectors |= dict(zip(missing, self._embed(missing)))
    return np.stack([self._vectors[text] for text in texts])

  def _own_rows(self, texts: Sequence[str]) -> list[int]:
    """Returns the rows of the run's own memory with one of these texts."""
    own, wanted = cast(HybridRanker, self._base).point_texts, set(texts)
    if self._own_hashes is None:
      self._own_hashes = np.fromiter(map(hash, own), np.int64, len(own))
    alike = np.flatnonzero(np.isin(self._own_hashes, list(map(hash, texts)))).tolist()
    return [row for row in alike if own[row] in wanted]

  def _truth(self, ids: Sequence[Sequence[int]]) -> sp.csr_matrix:
    indptr = np.concatenate([[0], np.cumsum(list(map(len, ids)), dtype=np.int64)])
    columns = np.array([label for of_text in ids for label in sorted(of_text)], np.int64)
    shape = len(ids), self._dataset.num_labels
    return sp.csr_matrix((np.ones(len(columns), np.float32), columns, indptr), shape)


class _Remembered(NamedTuple):
  """Holds a ranker, and its row of each learnt text."""

  ranker: HybridRanker
  rows: dict[str, int]
