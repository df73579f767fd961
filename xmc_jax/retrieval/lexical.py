"""Compares texts by their words: tf-idf vectors, and the nearest texts of a table by cosine."""

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import scipy.sparse as sp
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.preprocessing import normalize

_NUM_WORDS = 1 << 21  # hashed columns for words and word pairs: no vocabulary has to be kept
_TEXTS = 50_000  # texts that are vectorised at a time
_MOST_TEXTS = 20_000  # words that occur in more texts than this are not searched for


class Lexicon:
  """Turns texts into unit tf-idf vectors of words and word pairs.

  A word's weight is (1 + ln count) · (1 + ln((1 + n) / (1 + d))), where d of the n given texts have the word
  (Salton and Buckley, 1988). Queries do not change n and d.

  Args:
    texts: training queries and labels.
  """

  def __init__(self, texts: Iterable[str]):
    self._hashed = HashingVectorizer(
      n_features=_NUM_WORDS,
      alternate_sign=False,
      norm=None,
      ngram_range=(1, 2),
      token_pattern=r"(?u)\b\w+\b",
      dtype=np.float32,
    )
    num_texts, with_word = 0, np.zeros(_NUM_WORDS, np.int64)
    for part in _parts(texts):
      with_word += np.bincount(self._hashed.transform(part).indices, minlength=_NUM_WORDS)
      num_texts += len(part)
    self._idf = (1 + np.log((1 + num_texts) / (1 + with_word))).astype(np.float32)

  def vectors(self, texts: Sequence[str]) -> sp.csr_matrix:
    """Returns CSR `[n, V]` float32 unit vectors; a text without a word is a row of zeros."""
    parts = [sp.csr_matrix((0, _NUM_WORDS), dtype=np.float32)]
    parts += [self._weighted(self._hashed.transform(part)) for part in _parts(texts)]
    return sp.vstack(parts, "csr")

  def _weighted(self, counts: sp.csr_matrix) -> sp.csr_matrix:
    counts.data = (1 + np.log(counts.data)) * self._idf[counts.indices]
    return normalize(counts, copy=False)


class TextTable:
  """Finds the texts of a table that share words with a query.

  Args:
    vectors: CSR `[n, V]`, as `Lexicon.vectors` makes them.

  Attributes:
    vectors: as given.
  """

  def __init__(self, vectors: sp.csr_matrix):
    self.vectors = vectors
    by_word, self._searched_words = vectors.tocsc(), None
    counts = np.diff(by_word.indptr)
    if counts.max(initial=0) > _MOST_TEXTS:
      self._searched_words = sp.diags_array((counts <= _MOST_TEXTS).astype(np.float32), format="csc")
      by_word = by_word @ self._searched_words
      by_word.eliminate_zeros()
    self._by_word = by_word.T.tocsr()

  def cosines(self, queries: sp.csr_matrix) -> sp.csr_matrix:
    """Returns CSR `[m, n]` cosines of queries `[m, V]` and the texts that they share a word with.

    A word in more than 20,000 texts adds nothing, but its weight is part of the vectors' lengths.
    """
    return (queries @ self._by_word).tocsr()

  def cosines_of(self, queries: sp.csr_matrix, ids: np.ndarray) -> np.ndarray:
    """Returns these cosines `[m, c]` only for the texts `ids`, faster than `cosines`."""
    queries = queries if self._searched_words is None else queries @ self._searched_words
    return cosines_at(queries.tocsr(), self.vectors, ids)

  def nearest(self, queries: sp.csr_matrix, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Finds the k nearest texts of each query; see `largest`."""
    return largest(self.cosines(queries), k)


class Words:
  """Indexes training queries and labels by their words; encoders of the same texts share it.

  Args:
    point_texts, label_texts: the texts.

  Attributes:
    lexicon: of all these texts.
    points, labels: the tables of the texts.
  """

  def __init__(self, point_texts: Sequence[str], label_texts: Sequence[str]):
    self.lexicon = Lexicon(itertools.chain(point_texts, label_texts))
    self.points = TextTable(self.lexicon.vectors(point_texts))
    self.labels = TextTable(self.lexicon.vectors(label_texts))


class QueryWords:
  """Holds what is known of some queries by their words, each computed at its first use.

  Args:
    index: the index to compare with.
    texts: n queries.
    k: number of near training queries.
  """

  def __init__(self, index: Words, texts: Sequence[str], k: int):
    self._index, self._texts, self._k = index, texts, k

  @functools.cached_property
  def vectors(self) -> sp.csr_matrix:
    """Returns the queries' tf-idf vectors, CSR `[n, V]`."""
    return self._index.lexicon.vectors(self._texts)

  @functools.cached_property
  def near(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns `[n, k]` training queries that share words, and their cosines; padded with -1 and 0."""
    return self._index.points.nearest(self.vectors, self._k)


def cosines_at(queries: sp.csr_matrix, vectors: sp.csr_matrix, ids: np.ndarray) -> np.ndarray:
  """Returns cosines `[n, c]` float32 of unit queries `[n, V]` and rows `ids` `[n, c]` of `vectors`."""
  rows = np.repeat(np.arange(len(ids)), ids.shape[1])
  products = queries[rows].multiply(vectors[ids.ravel()]).sum(axis=1)
  return np.asarray(products, np.float32).reshape(ids.shape)


def largest(scores: sp.csr_matrix, k: int) -> tuple[np.ndarray, np.ndarray]:
  """Finds the largest positive entries of each row, best first, ties by rising column.

  Args:
    scores: CSR `[n, m]`.
    k: number of entries per row.

  Returns:
    Columns `[n, k]` int32, padded with -1, and values `[n, k]` float32, padded with 0.
  """
  ids = np.full((scores.shape[0], k), -1, np.int32)
  values = np.zeros((scores.shape[0], k), np.float32)
  for row, (start, end) in enumerate(itertools.pairwise(scores.indptr)):
    data, columns = scores.data[start:end], scores.indices[start:end]
    least = np.partition(data, -k)[-k] if len(data) > k else 0.0
    candidates = np.flatnonzero((data >= least) & (data > 0))
    best = candidates[np.lexsort((columns[candidates], -data[candidates]))[:k]]
    ids[row, : len(best)] = columns[best]
    values[row, : len(best)] = data[best]
  return ids, values


def _parts(texts: Iterable[str]) -> Iterator[list[str]]:
  texts = iter(texts)
  while part := list(itertools.islice(texts, _TEXTS)):
    yield part
