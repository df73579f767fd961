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
from xmc_jax.retrieval.search import Ranking, best_of
from xmc_jax.retrieval.sources import Queries, Retriever

_SPARE = 1000  # rows that count no more; with more of them near a query, too few others are found
_BLOCK = 1024  # queries compared with new rows at a time
_ALIKE, _SAME = 64, 0.999  # nearest queries that may have the same text, and the least cosine of such
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
  """Holds a table with more rows below it, without a copy; `stacked[ids]` are rows of both."""

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
    if is_new.all():
      return self.second[ids - num_first]
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
  """Holds texts, and more after them."""

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

  def grown(self, vectors: np.ndarray, gone: np.ndarray) -> "Nearest":
    """Returns a search of more rows `[n, D]`; those of the ids `gone` count no more."""
    counts = np.concatenate([self.counts, np.ones(len(vectors), bool)])
    counts[gone] = False
    return Nearest(self._index, self.points.below(vectors), counts)

  def search(self, queries: np.ndarray, k: int) -> Ranking:
    """Returns the k nearest rows of each query, as `Index.search` does."""
    num_first = len(self.points.first)
    spare = min(int(np.count_nonzero(~self.counts)), _SPARE)
    parts = [self._index.search(queries, min(k + spare, num_first))] if self._index else []
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
    self.first, self.second, self._counts = first, second, counts
    self.vectors = Stacked(first.vectors, second.vectors)

  def cosines(self, queries: sp.csr_matrix) -> sp.csr_matrix:
    """Returns the same as `TextTable.cosines`, for all texts."""
    found = sp.hstack([self.first.cosines(queries), self.second.cosines(queries)], "csr")
    found.data *= self._counts[found.indices]
    return found


def with_rows(retriever: Retriever, rows: Rows, gone: np.ndarray) -> Retriever:
  """Returns a retriever that remembers more training queries, and forgets some.

  It shares all indexes with `retriever`, which stays as it is; new queries are searched exactly. The weights
  of words stay as they are.

  Args:
    retriever: remembers N queries.
    rows: n queries, which get the ids from N on.
    gone: ids of queries that count no more; those of earlier calls need not be repeated.
  """
  if not isinstance(retriever, CombinedRetriever):
    return _grown(retriever, rows, gone)
  ends = np.cumsum([one.points.shape[1] for one in retriever.by_encoder.values()])
  parts = np.split(rows.vectors, ends[:-1], axis=1)
  grown, words = copy.copy(retriever), None
  by_encoder: dict[str, Retriever] = {}
  for (name, one), part in zip(retriever.by_encoder.items(), parts):
    by_encoder[name] = _grown(one, rows._replace(vectors=part), gone, words)
    words = by_encoder[name].words
  vars(grown).update(vars(next(iter(by_encoder.values()))), _by_encoder=by_encoder)
  return grown


def rows_of(retriever: Retriever, queries: Queries) -> np.ndarray:
  """Returns the ids of the remembered queries with one of these texts: they are among the nearest."""
  first = next(iter(retriever.by_encoder.values()))
  if not first.nearest or not len(queries.texts):
    return np.zeros(0, np.int64)
  unit = unit_rows(np.nan_to_num(queries.vectors[:, : first.points.shape[1]]))
  ids, scores = first.nearest.search(unit, min(_ALIKE, len(first.points)))
  texts, found = first.corpus.point_texts, set()
  for query, number in zip(*np.nonzero((scores > _SAME) | ~unit.any(axis=1, keepdims=True))):
    row = int(ids[query, number])
    if row >= 0 and texts[row] == queries.texts[int(query)]:
      found.add(row)
  return np.array(sorted(found), np.int64)


def _grown(retriever: Retriever, rows: Rows, gone: np.ndarray, words: Words | None = None) -> Retriever:
  grown, corpus, near = copy.copy(retriever), retriever.corpus, retriever.nearest
  if not isinstance(near, Nearest):
    near = Nearest(near, _stacked(retriever.points), np.ones(len(retriever.points), bool))
  near = near.grown(unit_rows(np.nan_to_num(rows.vectors)), gone)
  truth = sp.vstack([corpus.truth, rows.truth], "csr", corpus.truth.dtype)
  truth.data *= np.repeat(near.counts, np.diff(truth.indptr))
  truth.eliminate_zeros()
  grown.nearest, grown.points, grown.log_frequency = near, near.points, log_frequency(truth)
  known = corpus.point_texts
  texts = known if isinstance(known, StackedTexts) else StackedTexts(known, [])
  grown.corpus = corpus._replace(truth=truth, point_texts=texts.followed_by(rows.texts))
  grown.words = words or _with_words(retriever.words, rows.texts, near.counts)
  return grown


def _with_words(words: Words, texts: Sequence[str], counts: np.ndarray) -> Words:
  grown, table = copy.copy(words), words.points
  first = table.first if isinstance(table, _Texts) else table
  vectors = table.vectors if isinstance(table, _Texts) else _stacked(table.vectors)
  more = vectors.below(words.lexicon.vectors(texts))
  grown.points = _Texts(first, TextTable(more.second), counts)
  return grown


def _stacked(table: _Table) -> Stacked:
  return Stacked(table, table[:0])
