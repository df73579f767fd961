"""Joins two scores of a label with a small decision tree (NGAME, Dahiya et al. 2023; DEXA, section 4).

Label texts and classifiers each rank all labels; the best of both lists are the candidates. A tree, fitted
on training rows, predicts a probability from (classifier score, text similarity, inverse propensity). It is
added to the two scores. docs/formulas.md, "Fusion".
"""

import pathlib
import zipfile
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from jax.sharding import Mesh

from xmc_jax.distributed.split_table import SplitTable, Table
from xmc_jax.errors import UserError
from xmc_jax.retrieval.memory import merged
from xmc_jax.retrieval.search import (
  Ranking,
  best_of,
  contained,
  padding,
  search,
  shard_table,
  with_bias_column,
)
from xmc_jax.storage import atomic

_BLOCK = 32  # queries whose candidates are scored together: their vectors fit into a cache


class Tree(NamedTuple):
  """Holds a decision tree as arrays with an entry per node."""

  feature: np.ndarray  # int32, the feature that a node compares; -1 for leaves
  threshold: np.ndarray  # float64; values up to this go left
  left: np.ndarray  # int32, the child nodes, as `right`
  right: np.ndarray
  probability: np.ndarray  # float32, fraction of relevant pairs

  def predict(self, features: np.ndarray) -> np.ndarray:
    """Returns the probabilities `[...]` float32 of features `[..., F]`."""
    node = np.zeros(features.shape[:-1], np.int32)
    while np.any(inner := self.feature[node] >= 0):
      compared = np.maximum(self.feature[node], 0)
      value = np.take_along_axis(features, compared[..., None], axis=-1)[..., 0]
      below = np.where(value <= self.threshold[node], self.left[node], self.right[node])
      node = np.where(inner, below, node)
    return self.probability[node]

  def save(self, path: pathlib.Path) -> None:
    """Writes an .npz file, whole or not at all."""
    with atomic.written_whole(path) as beside, beside.open("wb") as file:
      np.savez(file, **self._asdict())

  @classmethod
  def load(cls, path: pathlib.Path) -> "Tree":
    """Reads what `save` wrote.

    Raises:
      UserError: the file cannot be read.
    """
    try:
      with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return cls(*(arrays[name] for name in cls._fields))
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
      raise UserError(f"{path}: not readable ({error}); delete it to rank by the plain sum") from None


class Fusion:
  """Ranks labels by two kinds of vectors.

  Args:
    texts, classifiers: `[L, D]`, or `[L, D + 1]`, float32 each; may be split over the processes.
    inverse_propensity: `[L]`.
    num_candidates: labels taken from each ranking.
    devices: the mesh to search on.
    tree: None ranks candidates by the plain sum of scores.
  """

  def __init__(
    self,
    texts: Table,
    classifiers: Table,
    inverse_propensity: np.ndarray,
    *,
    num_candidates: int,
    devices: Mesh | None,
    tree: Tree | None = None,
  ):
    self._vectors, self._inverse_propensity = (classifiers, texts), inverse_propensity.astype(np.float32)
    self._placed = [shard_table(vectors, devices) for vectors in self._vectors]
    self._num_candidates, self._devices, self.tree = num_candidates, devices, tree

  def fit(self, queries: np.ndarray, truth: sp.csr_matrix, exclude: sp.csr_matrix, *, depth: int) -> None:
    """Fits the tree.

    Args:
      queries: `[n, D]` training rows; takes some 20 bytes for each of their candidates.
      truth: CSR `[n, L]`.
      exclude: CSR `[n, L]`, pairs that are no candidates: those of the *training* filter file.
      depth: the largest depth of the tree.
    """
    rows, relevant = [], []
    for start, ids, features in self._candidates(queries, exclude, self._num_candidates):
      real = ids >= 0
      rows.append(features[real])
      relevant.append(contained(ids, truth[start : start + len(ids)])[real])
    self.tree = _fitted(np.concatenate(rows), np.concatenate(relevant), depth)

  def rank(self, queries: np.ndarray, k: int, exclude: sp.csr_matrix | None = None) -> Ranking:
    """Ranks the k labels with the largest p_tree + similarity + classifier score; see `retrieval.search`."""
    out = padding(len(queries), k)
    for start, ids, features in self._candidates(queries, exclude, max(k, self._num_candidates)):
      scores = features[..., 0] + features[..., 1]
      scores = scores + self.tree.predict(features) if self.tree else scores
      rows = slice(start, start + len(ids))
      out.ids[rows], out.scores[rows] = best_of(ids, scores.astype(np.float32), k)
    return out

  def _candidates(
    self, queries: np.ndarray, exclude: sp.csr_matrix | None, count: int
  ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yields `(first row, ids [b, C] padded with -1, features [b, C, 3])` for each block of queries."""
    count = min(count, len(self._inverse_propensity))
    queries = with_bias_column(queries, self._vectors[0].shape[1])
    lists = [
      search(queries, placed, count, exclude=exclude, devices=self._devices).ids for placed in self._placed
    ]
    for start in range(0, len(queries), _BLOCK):
      rows = slice(start, start + _BLOCK)
      ids = merged(*(ranked[rows] for ranked in lists))
      safe = np.maximum(ids, 0)
      scores = [_products(vectors, queries[rows], safe) for vectors in self._vectors]
      yield start, ids, np.stack([*scores, self._inverse_propensity[safe]], axis=-1)


def _products(vectors: Table, queries: np.ndarray, ids: np.ndarray) -> np.ndarray:
  """Returns `[b, C]` inner products of queries `[b, D]` with the vectors of labels `[b, C]`."""
  if isinstance(vectors, SplitTable):
    return vectors.inner_products(queries, ids)
  return np.matmul(vectors[ids], queries[:, :, None])[..., 0]


def _fitted(features: np.ndarray, relevant: np.ndarray, depth: int) -> Tree:
  """Fits scikit-learn's decision tree; returns it as arrays."""
  from sklearn.tree import DecisionTreeClassifier

  classifier = DecisionTreeClassifier(max_depth=depth, random_state=0).fit(features, relevant)
  tree, kinds = classifier.tree_, list(classifier.classes_)
  shares = tree.value[:, 0] / tree.value[:, 0].sum(axis=1, keepdims=True)
  share = shares[:, kinds.index(True)] if True in kinds else np.zeros(len(shares))
  return Tree(
    np.where(tree.children_left >= 0, tree.feature, -1).astype(np.int32),
    tree.threshold,
    tree.children_left.astype(np.int32),
    tree.children_right.astype(np.int32),
    share.astype(np.float32),
  )
