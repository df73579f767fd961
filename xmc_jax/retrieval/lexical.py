"""Compares texts by words and parts of words: tf-idf vectors, and the nearest texts of a table by cosine."""

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from xmc_jax.retrieval.search import Ranking

_COLUMN_BITS = 21
_NUM_COLUMNS = 1 << _COLUMN_BITS  # hashed columns of words, pairs and n-grams each: no vocabulary is kept
_CHARACTERS = 2_000_000  # of texts that are vectorised at a time
_MOST_TEXTS = 20_000  # words that occur in more texts than this are not searched for
_KINDS = 3  # words, pairs of words, n-grams
_NGRAM = 4
_SHARE_OF_UNKNOWN, _MOST_SHARE, _LEAST_SHARE = 3.0, 0.5, 0.1  # of n-grams in a cosine
_WITH_NGRAMS = 1_000  # characters of a text, at its beginning, that have n-grams: a page has too many
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ / golden ratio (Knuth, 1998, 6.4)
# Where scripts without spaces begin and end: Thai and Lao, Burmese, Khmer, Kana, Han.
_UNSPACED: tuple[int, ...] = (0x0E00, 0x0F00, 0x1000, 0x10A0, 0x1780, 0x1800, 0x3040, 0x3100, 0x3400, 0xA000)
_UNSPACED += (0xF900, 0xFB00, 0x20000, 0x32400)
_TURKISH = {0x0131: "i", 0x0307: None}  # the i without a dot, and the dot that is left of İ in small letters


class Lexicon:
  """Turns texts into unit tf-idf vectors of words and word pairs, and of n-grams of characters within words.

  N-grams find inflected words and parts of compounds. They have 4 characters, with a space at either end of a
  word; in scripts without spaces, 1 and 2 characters, too. Those of a text's first 1,000 characters count.
  The weight of a word or an n-gram is (1 + ln count) · (1 + ln((1 + n) / (1 + d))), where d of the n given
  texts have it (Salton and Buckley, 1988). The cosine of two texts is 1 - `share` times that by words and
  pairs, plus `share` times that by n-grams. Later texts do not change the weights.

  Args:
    point_texts, label_texts: the texts, which may be read once.

  Attributes:
    share: of n-grams in a cosine: 3 times the share of words of new texts that are not among those of the
      points, at most 0.5, and 0 below 0.1. That share is estimated as the share of words that occur once
      (Good, 1953).
  """

  def __init__(self, point_texts: Iterable[str], label_texts: Iterable[str] = ()):
    from sklearn.feature_extraction.text import HashingVectorizer  # here, as it takes a second

    hashed = functools.partial(
      HashingVectorizer,
      n_features=_NUM_COLUMNS,
      alternate_sign=False,
      norm=None,
      lowercase=False,
      token_pattern="[^ ]+",
      dtype=np.float32,
    )
    self._words, self._pairs = hashed(ngram_range=(1, 1)), hashed(ngram_range=(2, 2))
    self.share = _MOST_SHARE  # so that n-grams are counted, until the words are
    with_it, words = np.zeros((_KINDS, _NUM_COLUMNS), np.int32), np.zeros(_NUM_COLUMNS)
    num_texts = self._count(point_texts, with_it, words)
    self.share = _ngram_share(words)
    num_texts += self._count(label_texts, with_it)
    self._idf = np.full(with_it.shape, 1 + np.log(1 + num_texts), np.float32)
    seen = np.nonzero(with_it)  # few of the columns, of most sets of texts
    self._idf[seen] = 1 + np.log((1 + num_texts) / (1 + with_it[seen]))

  def vectors(self, texts: Sequence[str]) -> sp.csr_matrix:
    """Returns CSR `[n, V]` float32 unit vectors; a text without a word is a row of zeros."""
    parts = [sp.csr_matrix((0, _KINDS * _NUM_COLUMNS), dtype=np.float32)]
    parts += [self._weighted(self._counts(part)) for part in _parts(texts)]
    return sp.vstack(parts, "csr")

  def _count(self, texts: Iterable[str], with_it: np.ndarray, words: np.ndarray | None = None) -> int:
    """Adds to `[3, C]` the texts with each word, pair and n-gram, to `[C]` each word; returns the texts."""
    num_texts = 0
    for part in _parts(texts):
      each = self._counts(part)
      for total, counts in zip(with_it, each):
        np.add.at(total, counts.indices, np.int32(1))  # of the same type, or it is slow
      if words is not None:
        np.add.at(words, each[0].indices, each[0].data.astype(np.float64))
      num_texts += len(part)
    return num_texts

  def _counts(self, texts: Sequence[str]) -> list[sp.csr_matrix]:
    plain = [words_of(text) for text in texts]
    with_ngrams = plain if self.share else [""] * len(plain)
    return [self._words.transform(plain), self._pairs.transform(plain), _ngram_counts(with_ngrams)]

  def _weighted(self, each: Sequence[sp.csr_matrix]) -> sp.csr_matrix:
    from sklearn.preprocessing import normalize

    for counts, idf in zip(each, self._idf):
      counts.data = (1 + np.log(counts.data)) * idf[counts.indices]
    words = normalize(sp.hstack(each[:2], "csr"), copy=False)
    ngrams = normalize(each[2], copy=False)
    parts = [words * np.sqrt(1 - self.share), ngrams * np.sqrt(self.share)]
    return normalize(sp.hstack(parts, "csr", np.float32), copy=False)  # a text may lack n-grams


def _ngram_share(counts: np.ndarray) -> float:
  """Returns the share of n-grams in a cosine; `counts` `[C]` says how often each word occurs."""
  unknown = (counts == 1).sum() / counts.sum() if counts.any() else 1
  share = min(_SHARE_OF_UNKNOWN * unknown, _MOST_SHARE)
  return share if share >= _LEAST_SHARE else 0.0


def words_of(text: str) -> str:
  """Returns the words of a text with a space between: composed (NFKC), and without differences of case."""
  plain = unicodedata.normalize("NFKC", text).casefold().translate(_TURKISH)
  return " ".join(_word().findall(plain))


@functools.cache
def _word() -> re.Pattern:
  """Returns the pattern of a word: letters, digits, underscores, and marks, as some scripts write vowels."""
  marks = "".join(chr(code) for code in range(0x20000) if unicodedata.category(chr(code))[0] == "M")
  return re.compile(rf"(?:\w+|(?![\x00-\x7f])[{marks}]+)+")  # the long class is tried after all others


def _ngram_counts(texts: Sequence[str]) -> sp.csr_matrix:
  """Counts the n-grams of characters of texts as `words_of` returns them; CSR `[n, V]` float32."""
  spaced = [f" {text[:_WITH_NGRAMS]} " for text in texts]
  codes = np.frombuffer("".join(spaced).encode("utf-32-le"), np.uint32)
  row = np.repeat(np.arange(len(texts)), [len(text) for text in spaced])
  inside_word = codes != ord(" ")
  unspaced = np.searchsorted(_UNSPACED, codes, side="right") % 2 == 1
  rows, columns = [], []
  for size, allowed, where in (
    (_NGRAM, inside_word, range(1, _NGRAM - 1)),  # only the first and the last may be a space
    (2, unspaced, range(2)),
    (1, unspaced, range(1)),
  ):
    count = max(len(codes) - size + 1, 0)
    starts = np.flatnonzero(np.logical_and.reduce([allowed[place : place + count] for place in where]))
    hashed = np.full(len(starts), size, np.uint64)
    for place in range(size):
      hashed = (hashed + codes[starts + place]) * _MULTIPLIER
    rows.append(row[starts])
    columns.append((hashed >> np.uint64(64 - _COLUMN_BITS)).astype(np.int64))
  entries = np.concatenate(rows), np.concatenate(columns)
  ones = np.ones(len(entries[0]), np.float32)
  return sp.coo_matrix((ones, entries), (len(texts), _NUM_COLUMNS)).tocsr()


class TextTable:
  """Finds the texts of a table that share words with a query.

  Args:
    vectors: CSR `[n, V]`, as `Lexicon.vectors` makes them.
    searched: `[V]` bool, the words to search for; None is all but the most common.

  Attributes:
    vectors, searched: as given; or None, if all words are searched for.
  """

  def __init__(self, vectors: sp.csr_matrix, searched: np.ndarray | None = None):
    self.vectors, self.searched = vectors, searched
    by_word = vectors.tocsc()
    counts = np.diff(by_word.indptr)
    if searched is None and counts.max(initial=0) > _MOST_TEXTS:
      self.searched = counts <= _MOST_TEXTS
    if self.searched is not None:
      by_word.data *= np.repeat(self.searched, counts)
      by_word.eliminate_zeros()
    self._by_word = by_word.T.tocsr()

  def cosines(self, queries: sp.csr_matrix) -> sp.csr_matrix:
    """Returns CSR `[m, n]` cosines of queries `[m, V]` and the texts that they share a word with.

    A word in more than 20,000 texts adds nothing, but its weight is part of the vectors' lengths.
    """
    return (queries @ self._by_word).tocsr()

  def cosines_of(self, queries: sp.csr_matrix, ids: np.ndarray) -> np.ndarray:
    """Returns these cosines `[m, c]` only for the texts `ids`, faster than `cosines`."""
    if self.searched is not None:
      searched = queries.data * self.searched[queries.indices]
      queries = sp.csr_matrix((searched, queries.indices, queries.indptr), queries.shape)
    return cosines_at(queries, self.vectors, ids)


class Words:
  """Indexes training queries and labels by their words; encoders of the same texts share it."""

  def __init__(self, point_texts: Sequence[str], label_texts: Sequence[str]):
    self.lexicon = Lexicon(point_texts, label_texts)
    self.points: Any = TextTable(self.lexicon.vectors(point_texts))  # or what `grown` makes of it
    self.labels = TextTable(self.lexicon.vectors(label_texts))


class QueryWords:
  """Holds what is known of n queries by their words, each computed at its first use."""

  def __init__(self, index: Words, texts: Sequence[str], k: int):
    self._index, self._texts, self._k = index, texts, k

  @functools.cached_property
  def vectors(self) -> sp.csr_matrix:
    """Returns the queries' tf-idf vectors, CSR `[n, V]`."""
    return self._index.lexicon.vectors(self._texts)

  @functools.cached_property
  def near(self) -> Ranking:
    """Returns the nearest `[n, k]` training queries and their cosines; padded with -1 and 0."""
    return Ranking(*largest(self._index.points.cosines(self.vectors), self._k))


def cosines_at(queries: sp.csr_matrix, vectors: sp.csr_matrix, ids: np.ndarray) -> np.ndarray:
  """Returns cosines `[n, c]` float32 of unit queries `[n, V]` and rows `ids` `[n, c]` of `vectors`."""
  rows = np.repeat(np.arange(len(ids)), ids.shape[1])
  products = queries[rows].multiply(vectors[ids.ravel()]).sum(axis=1)
  return np.asarray(products, np.float32).reshape(ids.shape)


def largest(scores: sp.csr_matrix, k: int) -> tuple[np.ndarray, np.ndarray]:
  """Finds the k largest positive entries of each row of a CSR `[n, m]`, best first, ties by rising column.

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
  part, size = [], 0
  for text in texts:
    part.append(text)
    size += len(text) + 1
    if size > _CHARACTERS:
      yield part
      part, size = [], 0
  if part:
    yield part
