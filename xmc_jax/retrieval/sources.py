"""Finds candidate labels by several sources, one function each.

A source takes a block of queries and returns its best labels, and a function that scores any label for them.
Its scores resemble probabilities: 0 if it knows nothing, about 1 if it is certain. To add a source, write a
function, list it in `SOURCES`, and give its meaning in `config.SOURCES`. docs/formulas.md, "Ranking", has the
formulas.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from jax.sharding import Mesh

from xmc_jax.ops.unit_rows import finite, unit_rows
from xmc_jax.retrieval.index import Index
from xmc_jax.retrieval.lexical import QueryWords, Words, largest
from xmc_jax.retrieval.memory import Neighbors, log_frequency, merged, ridge_weights
from xmc_jax.retrieval.search import Ranking, padding, values_at, with_bias_column

_NEAR = 64  # nearest training queries that are used, by embedding and by words each
_VOTERS, _SHARPNESS = 50, 8  # a training query's vote is its cosine to this power
_WORD_VOTERS = 20
_NUM_FILTERS = 2  # sets of labels whose vectors are kept
_FEW_OUT = 1000  # labels that are left out by a deeper search


class Queries(NamedTuple):
  """Holds n texts to find labels for; a vector that is not finite counts as zeros."""

  vectors: np.ndarray  # `[n, D]` float32 embeddings
  texts: Sequence[str]
  where: np.ndarray | None = None  # `[L]` bool, True = a label that may be an answer; None is all


class Corpus(NamedTuple):
  """Holds all data that labels can be ranked by; a vector that is not finite counts as zeros."""

  # `[L, D]` float32, by source: 'encoder', and 'classifier' if there are classifiers; or `[L, D + 1]` each
  # (`search.with_bias_column`).
  label_vectors: Mapping[str, np.ndarray]
  point_vectors: np.ndarray  # `[N, D]` float32 embeddings of the training queries in the memory
  truth: sp.csr_matrix  # `[N, L]` float32, the votes of these training queries for their labels: 1, or less
  point_texts: Sequence[str]
  label_texts: Sequence[str]
  temperature: float  # divides the scores by `label_vectors`


class Found(NamedTuple):
  """Holds what a source found for a block of queries."""

  ids: np.ndarray  # `[n, k]` int32, its best labels, best first, padded with -1
  # `labels [n, C] -> scores [n, C]` float32; the score of label -1 is undefined.
  scores_of: Callable[[np.ndarray], np.ndarray]
  voters: Neighbors | None = None  # the training queries that vote; None for a source without votes
  some_ids: np.ndarray | None = None  # as `ids`, of the labels that may be answers; None is `ids`


class Retriever:
  """Holds the indexes of a corpus that sources search.

  Args:
    corpus: what to search.
    backend, devices: arguments of `Index`, for labels and for the memory.
    words: the index of the words of the same texts, if there is one; None makes it.

  Attributes:
    corpus: as given, but with finite label vectors and without point vectors.
    points: `[N, D]` float32 unit embeddings of the training queries.
    names: the sources that this corpus has data for, in the order of `SOURCES`.
    log_frequency: `[L]` float32, ln(1 + number of training queries in the memory with the label).
    words: the index of words.
    nearest, labels: search `points`, None if there are none; and label vectors, by source.
  """

  def __init__(
    self, corpus: Corpus, *, backend: str = "exact", devices: Mesh | None = None, words: Words | None = None
  ):
    by_scorer = {name: finite(vectors) for name, vectors in corpus.label_vectors.items()}
    self.points: Any = unit_rows(finite(corpus.point_vectors))
    # Keeps only one copy of the points, as there may be millions.
    self.corpus = corpus = corpus._replace(label_vectors=by_scorer, point_vectors=self.points[:0])
    self.index = functools.partial(Index, backend=backend, devices=devices, patience=50)
    self._some_labels: dict[tuple[str, bytes], tuple[np.ndarray, Index]] = {}
    self._used = {name: np.asarray(vectors.any(axis=0)) for name, vectors in corpus.label_vectors.items()}
    self.labels: dict[str, Any] = {
      name: self.index(self.columns_of(name, vectors), name=f"{name} ranking")
      for name, vectors in corpus.label_vectors.items()
    }
    self.nearest: Any = self.index(self.points, name="memory") if len(self.points) else None
    self.words = words or Words(corpus.point_texts, corpus.label_texts)
    self.log_frequency = log_frequency(corpus.truth)
    self.names = source_names(corpus.label_vectors)

  def __copy__(self) -> "Retriever":
    copied = object.__new__(type(self))
    vars(copied).update(vars(self))
    copied._some_labels = {}  # of its own labels
    return copied

  @property
  def by_encoder(self) -> Mapping[str, "Retriever"]:
    """Returns by encoder the retriever that searches by it alone; a single encoder has no name."""
    return {"": self}

  def blocks(
    self, queries: Queries, k: int, size: int, exclude: sp.csr_matrix | None = None
  ) -> list["Block"]:
    """Searches the vectors of all queries, and returns these in blocks of `size` for the sources.

    Each source finds k labels, without the pairs `exclude`, CSR `[n, L]`.
    """
    vectors = finite(queries.vectors)
    queries = queries._replace(vectors=with_bias_column(vectors, len(self._used["encoder"])))
    ranked, some_ids = {}, {}
    for name, index in self.labels.items():
      columns = self.columns_of(name, queries.vectors)
      ranked[name] = index.search(columns, k, exclude=exclude)
      if queries.where is not None:
        some_ids[name] = self._best_of_some(name, index, columns, k, queries.where)
    unit = unit_rows(vectors)
    num_near = min(_NEAR, len(self.points))
    near = self.nearest.search(unit, num_near) if self.nearest else padding(len(unit), 0)

    def block(start: int) -> Block:
      rows = slice(start, start + size)
      return Block(
        self,
        Queries(queries.vectors[rows], queries.texts[rows], queries.where),
        k,
        unit=unit[rows],
        ranked={name: Ranking(ranking.ids[rows], ranking.scores[rows]) for name, ranking in ranked.items()},
        some_ids={name: ids[rows] for name, ids in some_ids.items()},
        near=Ranking(near.ids[rows], near.scores[rows]),
        exclude=None if exclude is None else exclude[rows],
        of_words=QueryWords(self.words, queries.texts[rows], num_near),
      )

    return [block(start) for start in range(0, len(unit), size)]

  def _best_of_some(
    self, name: str, index: Index, columns: np.ndarray, k: int, where: np.ndarray
  ) -> np.ndarray:
    """Returns the ids of the best labels that may be answers, by a deeper search if nearly all may."""
    if (num_out := int((~where).sum())) > _FEW_OUT:
      labels, some = self._index_of(name, where)
      ids = some.search(columns, min(k, len(labels))).ids
      return np.where(ids >= 0, labels[ids], -1) if len(labels) else ids
    deeper = index.search(columns, min(k + (1 << num_out.bit_length()), len(where))).ids
    ids = np.where((deeper >= 0) & where[deeper], deeper, -1)
    return np.take_along_axis(ids, np.argsort(ids < 0, axis=1, kind="stable"), axis=1)[:, :k]

  def _index_of(self, name: str, where: np.ndarray) -> tuple[np.ndarray, Index]:
    """Returns the ids of some labels, and the index of their vectors."""
    key, kept = (name, where.tobytes()), self._some_labels
    if key not in kept:
      labels = np.flatnonzero(where).astype(np.int32)
      index = self.index(self.columns_of(name, self.corpus.label_vectors[name][labels]), backend="exact")
      self._some_labels = kept = {**dict(list(kept.items())[1 - _NUM_FILTERS :]), key: (labels, index)}
    return kept[key]

  def columns_of(self, name: str, vectors: np.ndarray) -> np.ndarray:
    """Returns the columns of query or label vectors that the source `name` uses."""
    used = self._used[name]
    return vectors if used.all() else vectors[..., used]


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
  """Holds n queries, and data about them that several sources use."""

  retriever: Retriever
  queries: Queries
  k: int  # labels that each source finds
  unit: np.ndarray  # `[n, D]` unit embeddings
  ranked: Mapping[str, Ranking]  # by source, labels ranked by vectors
  some_ids: Mapping[str, np.ndarray]  # by source, the best labels that may be answers, where not all may
  near: Ranking  # `[n, m]` nearest training queries, and their cosines
  exclude: sp.csr_matrix | None  # `[n, L]`
  of_words: QueryWords  # what is known by words
  encoder: str = ""  # its name, if there are several
  others: Sequence["Block"] = ()  # the same queries by other encoders

  def voted(self, voters: Neighbors) -> Found:
    """Returns the labels of training queries, ranked by their votes."""
    return self.scored(voters.votes(self.retriever.corpus.truth), voters)

  def scored(self, scores: sp.csr_matrix, voters: Neighbors | None = None) -> Found:
    """Returns the labels with the largest scores in a CSR `[n, L]`, without excluded pairs."""
    if self.exclude is not None:
      scores = (scores - scores.multiply(self.exclude)).tocsr()
    some_ids, where = None, self.queries.where
    if where is not None:
      values = scores.data * where[scores.indices]
      some_ids = largest(sp.csr_matrix((values, scores.indices, scores.indptr), scores.shape), self.k)[0]
    return Found(largest(scores, self.k)[0], functools.partial(values_at, scores), voters, some_ids)


def _by_vectors(name: str, block: Block) -> Found:
  """Scores a label by the softmax of its similarity to the query among the k most similar labels."""
  retriever, ranking = block.retriever, block.ranked[name]
  temperature = retriever.corpus.temperature
  vectors = retriever.corpus.label_vectors[name]
  queries = retriever.columns_of(name, block.queries.vectors)
  # A row has no real label only if all labels are excluded.
  scaled = np.where(ranking.ids >= 0, ranking.scores, -np.inf) / temperature
  largest_score = np.where(np.isfinite(scaled[:, :1]), scaled[:, :1], 0)
  total = np.exp(scaled - largest_score).sum(axis=1, keepdims=True)

  def scores_of(ids: np.ndarray) -> np.ndarray:
    picked = retriever.columns_of(name, vectors[np.maximum(ids, 0)])
    products = np.matmul(picked, queries[:, :, None])[..., 0] / temperature
    return np.exp(np.minimum(products - largest_score, 0)) / np.maximum(total, np.finfo(np.float32).tiny)

  return Found(ranking.ids, scores_of, some_ids=block.some_ids.get(name))


def memory(block: Block) -> Found:
  """Scores a label by its share of the votes of the 50 nearest training queries, each weighted by cosine⁸."""
  near = Ranking(*(array[:, :_VOTERS] for array in block.near))
  votes = np.where(near.ids >= 0, np.maximum(near.scores, 0) ** _SHARPNESS, 0)
  return block.voted(Neighbors(near.ids, votes).normalized())


def lexical_memory(block: Block) -> Found:
  """Scores a label by its share of the votes of the 20 nearest queries by tf-idf, weighted by cosine."""
  near = block.of_words.near
  return block.voted(Neighbors(near.ids[:, :_WORD_VOTERS], near.scores[:, :_WORD_VOTERS]).normalized())


def lexical_labels(block: Block) -> Found:
  """Scores a label by the tf-idf cosine of its text."""
  table = block.retriever.words.labels
  by_words = block.scored(table.cosines(block.of_words.vectors))
  return by_words._replace(scores_of=lambda ids: table.cosines_of(block.of_words.vectors, np.maximum(ids, 0)))


def memory_regression(block: Block) -> Found:
  """Scores a label by ridge regression on the training queries nearest by embedding and words together."""
  retriever = block.retriever
  near = merged(block.near.ids, block.of_words.near.ids)
  words = retriever.words.points.vectors
  return block.voted(ridge_weights(near, block.unit, block.of_words.vectors, retriever.points, words))


SOURCES: dict[str, Callable[[Block], Found]] = {
  "encoder": functools.partial(_by_vectors, "encoder"),
  "classifier": functools.partial(_by_vectors, "classifier"),
  "memory": memory,
  "memory_regression": memory_regression,
  "lexical_memory": lexical_memory,
  "lexical_labels": lexical_labels,
}


def source_names(scorers: Iterable[str]) -> tuple[str, ...]:
  """Returns the sources that exist with these scorers, in the order of `SOURCES`."""
  scorers = tuple(scorers)
  return tuple(name for name in SOURCES if name != "classifier" or name in scorers)
