"""Lets a retriever remember more training queries, and rank more labels, without indexing again what it has.

What is new is searched exactly, beside the indexes, until it is a tenth of all; then they are made anew.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from xmc_jax.ops.unit_rows import finite, unit_rows
from xmc_jax.retrieval.combined import CombinedRetriever
from xmc_jax.retrieval.index import Index
from xmc_jax.retrieval.lexical import TextTable, Words
from xmc_jax.retrieval.memory import log_frequency
from xmc_jax.retrieval.search import Ranking, best_of, padding
from xmc_jax.retrieval.sources import Retriever

_MOST_NEW = 0.1  # of all rows, without an index
_LEAST_SPARE, _SPARE = 64, 1024  # rows searched in place of those that count no more
_BLOCK = 1024  # queries compared with new rows at a time


class Rows(NamedTuple):
  """Holds n training queries to remember."""

  vectors: np.ndarray  # `[n, D]` float32 embeddings; by several encoders, side by side
  texts: Sequence[str]
  truth: sp.csr_matrix  # `[n, L]` float32, their votes for labels


class Stacked:
  """Holds vectors with more below them, without a copy; `stacked[ids]` are rows of both, from 0."""

  def __init__(self, first: np.ndarray, second: np.ndarray):
    self.first, self.second = first, second
    self.shape = (len(first) + len(second), *first.shape[1:])

  def __len__(self) -> int:
    return self.shape[0]

  def __getitem__(self, ids: np.ndarray) -> np.ndarray:
    is_new: np.ndarray = np.asarray(ids) >= len(self.first)
    if not is_new.any():
      return self.first[ids]
    rows = np.empty((*is_new.shape, *self.shape[1:]), self.first.dtype)
    rows[~is_new], rows[is_new] = self.first[ids[~is_new]], self.second[ids[is_new] - len(self.first)]
    return rows

  def below(self, more: np.ndarray) -> "Stacked":
    """Returns a table with still more rows below."""
    return Stacked(self.first, np.concatenate([self.second, more]))


class StackedTexts(Sequence[str]):
  """Holds texts, and more after them; rows count from 0."""

  def __init__(self, first: Sequence[str], second: Sequence[str]):
    self._first, self._second = first, second

  def __len__(self) -> int:
    return len(self._first) + len(self._second)

  def __getitem__(self, row: Any) -> Any:
    if isinstance(row, slice):
      return [self[one] for one in range(*row.indices(len(self)))]
    return self._first[row] if row < len(self._first) else self._second[row - len(self._first)]

  @classmethod
  def of(cls, first: Sequence[str], more: Sequence[str]) -> "StackedTexts":
    """Returns texts, with more after them."""
    if isinstance(first, StackedTexts):
      return cls(first._first, [*first._second, *more])
    return cls(first, list(more))


class Nearest:
  """Searches an index and more rows, exactly; leaves out rows that count no more.

  Args:
    index: of the first rows; None if there are none.
    points: `[N, D]` all rows.
    counts: `[N]` bool, whether a row counts.
    num_zeroed: rows that count no more, and are zeros in the index.
  """

  def __init__(self, index: Index | None, points: Stacked, counts: np.ndarray, num_zeroed: int = 0):
    self.index, self.points, self.counts, self._num_zeroed = index, points, counts, num_zeroed
    self._num_gone = num_gone = int(np.count_nonzero(~counts[: len(points.first)])) - num_zeroed
    # A power of two: each depth is compiled, or tuned, anew.
    self._spare = min(max(_LEAST_SPARE, 1 << (num_gone - 1).bit_length()), _SPARE) if num_gone else 0

  @classmethod
  def of(cls, index: "Index | Nearest | None", points: Any) -> "Nearest":
    """Returns the search of an index of points `[N, D]`."""
    if isinstance(index, Nearest):
      return index
    return cls(index, Stacked(points, points[:0]), np.ones(len(points), bool))

  def grown(self, vectors: np.ndarray, gone: np.ndarray, index: Callable[[np.ndarray], Index]) -> "Nearest":
    """Returns a search of more rows `[n, D]`; those of the ids `gone` count no more.

    If more than a tenth of all rows are without an index, or many count no more, `index` makes one of all.
    """
    counts = np.concatenate([self.counts, np.ones(len(vectors), bool)])
    counts[gone] = False
    grown = Nearest(self.index, self.points.below(vectors), counts, self._num_zeroed)
    points, many_gone = grown.points, grown._num_gone > _SPARE
    if len(points.second) <= _MOST_NEW * len(points) and not many_gone:
      return grown
    indexed, zeroed = np.concatenate([points.first, points.second]), np.zeros(0, int)
    if many_gone:  # fewer of them can be found beside others
      zeroed = np.flatnonzero(~counts)
      indexed[zeroed] = 0
    return Nearest(index(indexed), Stacked(indexed, indexed[:0]), counts, len(zeroed))

  def search(self, queries: np.ndarray, k: int, exclude: sp.csr_matrix | None = None) -> Ranking:
    """Returns the k nearest rows of each query, as `Index.search` does."""
    num_first = len(self.points.first)
    parts = [padding(len(queries), 0)]
    if self.index:
      left_out = None if exclude is None else exclude[:, :num_first]
      parts.append(self.index.search(queries, min(k + self._spare, num_first), exclude=left_out))
    if len(self.points.second):
      blocks = []
      for start in range(0, len(queries), _BLOCK):
        rows = slice(start, start + _BLOCK)
        left_out = None if exclude is None else exclude[rows, num_first:]
        blocks.append(self._best_new(queries[rows], k, left_out))
      parts.append(Ranking(*(np.concatenate(arrays) for arrays in zip(*blocks))))
    ids, scores = (np.concatenate(arrays, axis=1) for arrays in zip(*parts))
    return best_of(np.where(self.counts[ids], ids, -1), scores, k)

  def _best_new(self, queries: np.ndarray, k: int, exclude: sp.csr_matrix | None) -> Ranking:
    num_first = len(self.points.first)
    scores = queries @ self.points.second.T
    left_out = np.broadcast_to(~self.counts[num_first:], scores.shape)
    left_out = left_out if exclude is None else left_out | exclude.toarray().astype(bool)
    scores[left_out] = -np.inf
    best = np.argpartition(-scores, min(k, scores.shape[1]) - 1, axis=1)[:, :k]
    ids = np.where(np.take_along_axis(left_out, best, axis=1), -1, best + num_first)
    return Ranking(ids.astype(np.int32), np.take_along_axis(scores, best, axis=1))


class _Texts:
  """Finds N texts as a `TextTable` does, by two tables; leaves out those where `counts`, `[N]`, is False."""

  def __init__(self, vectors: sp.csr_matrix, first: TextTable, second: TextTable, counts: np.ndarray):
    self.vectors, self.first, self.second = vectors, first, second
    self._counts = None if counts.all() else counts

  def cosines(self, queries: sp.csr_matrix) -> sp.csr_matrix:
    """Returns the same as `TextTable.cosines`, for all texts."""
    found = sp.hstack([self.first.cosines(queries), self.second.cosines(queries)], "csr")
    if self._counts is not None:
      found.data *= self._counts[found.indices]
    return found


def with_rows(retriever: Retriever, rows: Rows, gone: np.ndarray) -> Retriever:
  """Returns a retriever that remembers more training queries, and forgets some.

  It shares indexes with `retriever`, which stays as it is. The weights of words stay as they are, and which
  words are too common to be searched for.

  Args:
    retriever: remembers N queries.
    rows: n queries, which get the ids from N on.
    gone: ids of queries that count no more; those of earlier calls need not be repeated.
  """
  ends = np.cumsum([one.points.shape[1] for one in retriever.by_encoder.values()])
  parts = iter(np.split(rows.vectors, ends[:-1], axis=1))

  def grown(one: Retriever, first: Retriever | None) -> Retriever:
    return _with_rows(one, rows._replace(vectors=next(parts)), gone, first)

  return _each(retriever, grown)


def with_labels(
  retriever: Retriever, vectors: Mapping[str, np.ndarray | None], texts: Sequence[str]
) -> Retriever:
  """Returns a retriever that ranks more labels, which no query has yet; see `with_rows`.

  Args:
    retriever: ranks L labels.
    vectors: by encoder, `[n, D]` of the source 'encoder', without the labels' frequency; None, like the
      vectors of all other sources, is zeros, so that only words and votes find these labels.
    texts: n texts; the labels get the ids from L on.
  """

  def grown(one: Retriever, first: Retriever | None) -> Retriever:
    name = next(name for name, own in retriever.by_encoder.items() if own is one)
    return _with_labels(one, vectors[name], texts, first)

  return _each(retriever, grown)


def _each(retriever: Retriever, grown: Callable[[Retriever, Retriever | None], Retriever]) -> Retriever:
  """Returns a retriever of what `grown` makes of the one by each encoder and of the first that it made."""
  if not isinstance(retriever, CombinedRetriever):
    return grown(retriever, None)
  by_encoder: dict[str, Retriever] = {}
  for name, one in retriever.by_encoder.items():
    by_encoder[name] = grown(one, next(iter(by_encoder.values()), None))
  both = copy.copy(retriever)
  vars(both).update(vars(next(iter(by_encoder.values()))), _by_encoder=by_encoder)
  return both


def _with_rows(retriever: Retriever, rows: Rows, gone: np.ndarray, first: Retriever | None) -> Retriever:
  """Returns one encoder's retriever; texts, votes and words are shared with that of the first encoder."""
  grown, corpus = copy.copy(retriever), retriever.corpus
  near = Nearest.of(retriever.nearest, retriever.points)
  near = near.grown(unit_rows(finite(rows.vectors)), gone, partial(grown.index, name="memory"))
  grown.nearest, grown.points = near, near.points
  if first:
    return _sharing(grown, first)
  truth = sp.vstack([corpus.truth, rows.truth], "csr", corpus.truth.dtype)
  if len(gone):
    truth.data *= np.repeat(near.counts, np.diff(truth.indptr))
    truth.eliminate_zeros()
  grown.corpus = corpus._replace(truth=truth, point_texts=StackedTexts.of(corpus.point_texts, rows.texts))
  grown.words = _with_words(retriever.words, rows.texts, near)
  grown.log_frequency = log_frequency(truth)
  return grown


def _with_words(words: Words, texts: Sequence[str], near: Nearest) -> Words:
  grown, table = copy.copy(words), words.points
  vectors = sp.vstack([table.vectors, words.lexicon.vectors(texts)], "csr")
  first = table.first if isinstance(table, _Texts) else table
  num_first = len(near.points.first)
  if num_first > first.vectors.shape[0]:
    first = TextTable(vectors[:num_first], first.searched)
  grown.points = _Texts(vectors, first, TextTable(vectors[num_first:], first.searched), near.counts)
  return grown


def _with_labels(
  retriever: Retriever, vectors: np.ndarray | None, texts: Sequence[str], first: Retriever | None
) -> Retriever:
  grown, corpus, by_source = copy.copy(retriever), retriever.corpus, {}
  grown.labels = {}
  for name, own in corpus.label_vectors.items():
    none = np.zeros((len(texts), own.shape[1]), own.dtype)
    new = none if vectors is None or name != "encoder" else finite(vectors)
    by_source[name] = np.concatenate([own, new])
    columns, index = partial(retriever.columns_of, name), partial(grown.index, name=f"{name} ranking")
    near = Nearest.of(retriever.labels[name], columns(own))
    grown.labels[name] = near.grown(columns(new), np.zeros(0, int), index)
  grown.corpus = corpus._replace(label_vectors=by_source)
  if first:
    return _sharing(grown, first)
  truth, num_labels = corpus.truth, len(corpus.label_texts) + len(texts)
  grown.corpus = grown.corpus._replace(
    truth=sp.csr_matrix((truth.data, truth.indices, truth.indptr), (truth.shape[0], num_labels)),
    label_texts=StackedTexts.of(corpus.label_texts, texts),
  )
  grown.words, table = copy.copy(retriever.words), retriever.words.labels
  more = sp.vstack([table.vectors, grown.words.lexicon.vectors(texts)], "csr")
  grown.words.labels = TextTable(more, table.searched)
  grown.log_frequency = log_frequency(grown.corpus.truth)
  return grown


def _sharing(grown: Retriever, first: Retriever) -> Retriever:
  """Returns one encoder's retriever with the texts, votes and words of the first encoder's."""
  own, shared = grown.corpus, first.corpus
  grown.corpus = shared._replace(label_vectors=own.label_vectors, temperature=own.temperature)
  grown.words, grown.log_frequency = first.words, first.log_frequency
  return grown
