"""Lets a retriever remember more training queries, without indexing again what it has."""

import copy
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar, overload

import numpy as np
import scipy.sparse as sp

from xmc_jax.ops.unit_rows import unit_rows
from xmc_jax.retrieval.combined import CombinedRetriever
from xmc_jax.retrieval.index import Index
from xmc_jax.retrieval.lexical import TextTable, Words
from xmc_jax.retrieval.memory import log_frequency
from xmc_jax.retrieval.search import Ranking, best_of, padding
from xmc_jax.retrieval.sources import Retriever, finite

_LEAST_SPARE, _SPARE = 64, 1024  # rows searched in place of those that count no more
_BLOCK = 1024  # queries compared with new rows at a time
_Table = TypeVar("_Table", np.ndarray, sp.csr_matrix)


class Rows(NamedTuple):
  """Holds training queries to remember.

  Attributes:
    vectors: `[n, D]` float32 embeddings; by several encoders, side by side.
    texts: n texts.
    truth: CSR `[n, L]` float32, their votes for labels.
  """

  vectors: np.ndarray
  texts: Sequence[str]
  truth: sp.csr_matrix


class Stacked(Generic[_Table]):
  """Holds a table with more rows below it, without a copy; `stacked[ids]` are rows of both, from 0."""

  def __init__(self, first: _Table, second: _Table):
    self.first: _Table = first
    self.second: _Table = second
    self.shape = (first.shape[0] + second.shape[0], *first.shape[1:])

  def __len__(self) -> int:
    return self.shape[0]

  def __getitem__(self, ids: np.ndarray) -> _Table:
    num_first = self.first.shape[0]
    is_new: np.ndarray = np.asarray(ids) >= num_first
    if not is_new.any():
      return self.first[ids]
    old, new = self.first[ids[~is_new]], self.second[ids[is_new] - num_first]
    if sp.issparse(old):
      places = np.argsort(np.concatenate([np.flatnonzero(~is_new), np.flatnonzero(is_new)]))
      return sp.vstack([old, new], "csr")[places]
    rows = np.empty((*is_new.shape, *self.shape[1:]), old.dtype)
    rows[~is_new], rows[is_new] = old, new
    return rows

  def below(self, more: _Table) -> "Stacked":
    """Returns a table with still more rows below."""
    join = sp.vstack if sp.issparse(more) else np.concatenate
    return Stacked(self.first, join([self.second, more]).astype(self.second.dtype))


class StackedTexts(Sequence[str]):
  """Holds texts, and more after them; rows count from 0."""

  def __init__(self, first: Sequence[str], second: Sequence[str]):
    self._first, self._second = first, second

  def __len__(self) -> int:
    return len(self._first) + len(self._second)

  @overload
  def __getitem__(self, row: int) -> str: ...
  @overload
  def __getitem__(self, row: slice) -> Sequence[str]: ...
  def __getitem__(self, row: Any) -> Any:
    if isinstance(row, slice):
      return [self[one] for one in range(*row.indices(len(self)))]
    return self._first[row] if row < len(self._first) else self._second[row - len(self._first)]

  def followed_by(self, more: Sequence[str]) -> "StackedTexts":
    """Returns these texts, and still more."""
    return StackedTexts(self._first, [*self._second, *more])


class Nearest:
  """Searches an index and more rows, exactly; leaves out rows that count no more.

  Args:
    index: of the first rows; None if there are none.
    points: `[N, D]` all rows.
    counts: `[N]` bool, whether a row counts.
  """

  def __init__(self, index: Index | None, points: Stacked, counts: np.ndarray):
    self._index, self.points, self.counts = index, points, counts
    num_gone = int(np.count_nonzero(~counts[: len(points.first)]))
    # A power of two: each depth is compiled, or tuned, anew.
    self._spare = min(max(_LEAST_SPARE, 1 << (num_gone - 1).bit_length()), _SPARE) if num_gone else 0

  def grown(self, vectors: np.ndarray, gone: np.ndarray) -> "Nearest":
    """Returns a search of more rows `[n, D]`; those of the ids `gone` count no more."""
    counts = np.concatenate([self.counts, np.ones(len(vectors), bool)])
    counts[gone] = False
    return Nearest(self._index, self.points.below(vectors), counts)

  def search(self, queries: np.ndarray, k: int) -> Ranking:
    """Returns the k nearest rows of each query, as `Index.search` does."""
    num_first = len(self.points.first)
    parts = [padding(len(queries), 0)]
    if self._index:
      parts.append(self._index.search(queries, min(k + self._spare, num_first)))
    if len(self.points.second):
      starts = range(0, len(queries), _BLOCK)
      blocks = [self._best_new(queries[start : start + _BLOCK], k) for start in starts]
      parts.append(Ranking(*(np.concatenate(arrays) for arrays in zip(*blocks))))
    ids, scores = (np.concatenate(arrays, axis=1) for arrays in zip(*parts))
    return best_of(np.where(self.counts[ids], ids, -1), scores, k)

  def _best_new(self, queries: np.ndarray, k: int) -> Ranking:
    num_first = len(self.points.first)
    scores = queries @ self.points.second.T
    scores[:, ~self.counts[num_first:]] = -np.inf
    best = np.argpartition(-scores, min(k, scores.shape[1]) - 1, axis=1)[:, :k]
    return Ranking((best + num_first).astype(np.int32), np.take_along_axis(scores, best, axis=1))


class _Texts:
  """Finds texts as a `TextTable` and one of new texts do, without those that count no more."""

  def __init__(self, first: TextTable, second: TextTable, counts: np.ndarray):
    self.first, self.second = first, second
    self._counts = None if counts.all() else counts
    self.vectors = Stacked(first.vectors, second.vectors)

  def cosines(self, queries: sp.csr_matrix) -> sp.csr_matrix:
    """Returns the same as `TextTable.cosines`, for all texts."""
    found = sp.hstack([self.first.cosines(queries), self.second.cosines(queries)], "csr")
    if self._counts is not None:
      found.data *= self._counts[found.indices]
    return found


def with_rows(retriever: Retriever, rows: Rows, gone: np.ndarray) -> Retriever:
  """Returns a retriever that remembers more training queries, and forgets some.

  It shares all indexes with `retriever`, which stays as it is; new rows are searched exactly. The weights of
  words stay as they are, and which words are too common to be searched for.

  Args:
    retriever: remembers N queries.
    rows: n queries, which get the ids from N on.
    gone: ids of queries that count no more; those of earlier calls need not be repeated.
  """
  if not isinstance(retriever, CombinedRetriever):
    return _grown(retriever, rows, gone)
  ends = np.cumsum([one.points.shape[1] for one in retriever.by_encoder.values()])
  parts = np.split(rows.vectors, ends[:-1], axis=1)
  grown = copy.copy(retriever)
  by_encoder: dict[str, Retriever] = {}
  for (name, one), part in zip(retriever.by_encoder.items(), parts):
    first = next(iter(by_encoder.values()), None)
    by_encoder[name] = _grown(one, rows._replace(vectors=part), gone, first)
  vars(grown).update(vars(next(iter(by_encoder.values()))), _by_encoder=by_encoder)
  return grown


def _grown(retriever: Retriever, rows: Rows, gone: np.ndarray, first: Retriever | None = None) -> Retriever:
  """Returns one encoder's retriever; texts, votes and words are shared with that of the first encoder."""
  grown, corpus, near = copy.copy(retriever), retriever.corpus, retriever.nearest
  if not isinstance(near, Nearest):
    near = Nearest(near, _stacked(retriever.points), np.ones(len(retriever.points), bool))
  grown.nearest = near = near.grown(unit_rows(finite(rows.vectors)), gone)
  grown.points = near.points
  if first:
    shared = {"truth": first.corpus.truth, "point_texts": first.corpus.point_texts}
    grown.corpus, grown.words, grown.log_frequency = (
      corpus._replace(**shared),
      first.words,
      first.log_frequency,
    )
    return grown
  truth = sp.vstack([corpus.truth, rows.truth], "csr", corpus.truth.dtype)
  if len(gone):
    truth.data *= np.repeat(near.counts, np.diff(truth.indptr))
    truth.eliminate_zeros()
  known = corpus.point_texts
  texts = known if isinstance(known, StackedTexts) else StackedTexts(known, [])
  grown.corpus = corpus._replace(truth=truth, point_texts=texts.followed_by(rows.texts))
  grown.words = _with_words(retriever.words, rows.texts, near.counts)
  grown.log_frequency = log_frequency(truth)
  return grown


def _with_words(words: Words, texts: Sequence[str], counts: np.ndarray) -> Words:
  grown, table = copy.copy(words), words.points
  first = table.first if isinstance(table, _Texts) else table
  vectors = table.vectors if isinstance(table, _Texts) else _stacked(table.vectors)
  more = vectors.below(words.lexicon.vectors(texts))
  grown.points = _Texts(first, TextTable(more.second, first.searched), counts)
  return grown


def _stacked(table: _Table) -> Stacked:
  return Stacked(table, table[:0])
