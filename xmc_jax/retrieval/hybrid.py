"""Ranks labels by all sources together: the hybrid ranker."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import scipy.sparse as sp

from xmc_jax.retrieval import cpu_cores, grown
from xmc_jax.retrieval.explanations import Reason, explain
from xmc_jax.retrieval.features import Candidates, candidates, feature_names
from xmc_jax.retrieval.hybrid_model import HybridModel, fit, fixed
from xmc_jax.retrieval.search import Ranking, best_of, contained, first_of, padding
from xmc_jax.retrieval.sources import Queries, Retriever

_BLOCK = 64  # queries handled together: their candidates' vectors fit into a cache
_DEPTH = 100  # least labels that each source finds, so that the top of the ranking does not depend on k
_T = TypeVar("_T")


class HybridRanker:
  """Ranks labels by the probability that a model, fitted on the features of these sources, gives them."""

  def __init__(self, retriever: Retriever, model: HybridModel):
    self._retriever, self._model = retriever, model
    self.point_texts = retriever.corpus.point_texts

  def rank(self, queries: Queries, k: int, exclude: sp.csr_matrix | None = None) -> Ranking:
    """Ranks the k most probable labels of each of n queries; ties by rising id.

    Pairs in `exclude`, CSR `[n, L]`, are left out. Padded with -1 where the sources find fewer labels.
    """

    def work(found: Candidates) -> Ranking:
      return best_of(found.ids, self._probabilities(found), k)

    times = len(self._retriever.by_encoder)  # each encoder finds some labels that the others do not
    return _joined(_each_block(self._retriever, queries, k, exclude, work, times=times), k)

  def rank_with_sources(
    self, queries: Queries, k: int, exclude: sp.csr_matrix | None = None
  ) -> tuple[Ranking, dict[str, Ranking]]:
    """Ranks as `rank` does, and by each source alone."""

    def work(found: Candidates) -> tuple[Ranking, dict[str, Ranking]]:
      # Keeps the source's order: the scores of labels far from the best may all be 0.
      alone = {name: first_of(one.ids, one.scores_of(one.ids), k) for name, one in found.found.items()}
      return best_of(found.ids, self._probabilities(found), k), alone

    parts = _each_block(self._retriever, queries, k, exclude, work)
    alone = {name: _joined([part[1][name] for part in parts], k) for name in self._retriever.names}
    return _joined([part[0] for part in parts], k), alone

  def rank_by(self, name: str, queries: Queries, k: int, exclude: sp.csr_matrix | None = None) -> Ranking:
    """Ranks by one source alone, as `rank_with_sources` does, but without running the others."""

    def work(found: Candidates) -> Ranking:
      one = found.found[name]
      ids = one.ids if one.some_ids is None else one.some_ids
      return first_of(ids, one.scores_of(ids), k)

    return _joined(_each_block(self._retriever, queries, k, exclude, work, names=(name,)), k)

  def explain(
    self, queries: Queries, ids: np.ndarray, exclude: sp.csr_matrix | None = None
  ) -> list[list[Reason]]:
    """Returns a reason for each label of each query in `ids`, `[n, k]` padded with -1, that `rank` gave."""
    truth = self._retriever.corpus.truth
    work = lambda found, labels: explain(found.found, labels, truth)
    labels = (ids[start : start + _BLOCK] for start in range(0, len(ids), _BLOCK))
    parts = _each_block(self._retriever, queries, ids.shape[1], exclude, work, labels)
    return [reasons for part in parts for reasons in part]

  def remembering(self, rows: grown.Rows, gone: np.ndarray) -> "HybridRanker":
    """Returns a ranker that remembers more training queries, and forgets some; see `grown.with_rows`."""
    return HybridRanker(grown.with_rows(self._retriever, rows, gone), self._model)

  def with_labels(self, vectors: Mapping[str, np.ndarray | None], texts: Sequence[str]) -> "HybridRanker":
    """Returns a ranker of more labels; see `grown.with_labels`."""
    return HybridRanker(grown.with_labels(self._retriever, vectors, texts), self._model)

  def _probabilities(self, found: Candidates) -> np.ndarray:
    real, out = found.ids >= 0, np.full(found.ids.shape, -np.inf, np.float32)
    out[real] = self._model.probabilities(found.features[real])
    return out


def fit_model(
  retriever: Retriever, queries: Queries, truth: sp.csr_matrix, exclude: sp.csr_matrix | None = None
) -> HybridModel:
  """Fits the model on queries, with true labels CSR `[n, L]`, that are not in the retriever's memory."""
  labels, rows_alike = like_test_time(retriever, truth)

  def work(found: Candidates, start: int) -> tuple[np.ndarray, ...]:
    rows = np.arange(start, start + len(found.ids))
    alike = (found.ids >= 0) & labels[found.ids] & rows_alike[rows, None]
    right = contained(found.ids, truth[rows])
    return found.features[alike], right[alike], np.broadcast_to(rows[:, None], alike.shape)[alike]

  starts = range(0, len(queries.vectors), _BLOCK)
  parts = _each_block(retriever, queries, _DEPTH, exclude, work, starts)
  names, *others = (feature_names(one.names) for one in retriever.by_encoder.values())
  if not parts:
    return fixed(names, others)
  features, right, rows = map(np.concatenate, zip(*parts))
  return fit(names, features, right, rows, others)


def like_test_time(retriever: Retriever, truth: sp.csr_matrix) -> tuple[np.ndarray, np.ndarray]:
  """Chooses the labels and the held-out queries that a model may be fitted on.

  A label that only held-out queries have is certainly right for one of them, and a model would learn to look
  for such labels. At test time, with all queries in the memory, there are none, so they are left out. Some
  labels may have no training query at all: one held-out-only label is kept in place of each of these.

  Returns:
    `[L]` bool, labels to fit on; `[n]` bool, queries with such a label, or without any label.
  """
  with_query = np.bincount(truth.indices, minlength=truth.shape[1]) > 0
  without_points = retriever.log_frequency == 0
  only_held_out = np.random.default_rng(0).permutation(np.flatnonzero(without_points & with_query))
  labels = np.ones(truth.shape[1], bool)
  labels[only_held_out[(without_points & ~with_query).sum() :]] = False
  num_alike = truth.astype(bool) @ labels.astype(np.int64)
  return labels, (num_alike > 0) | (np.diff(truth.indptr) == 0)


def _each_block(
  retriever: Retriever,
  queries: Queries,
  k: int,
  exclude: sp.csr_matrix | None,
  work: Callable[..., _T],
  *more: Iterable,
  names: Sequence[str] = (),
  times: int = 1,
) -> list[_T]:
  """Calls `work(candidates, *more)` for each block of queries, one block per core; returns the results.

  The candidates come from the sources `names`, the default is all; `times` is an argument of `candidates`.
  """
  depth = min(max(k, _DEPTH), retriever.corpus.truth.shape[1])
  blocks = retriever.blocks(queries, depth, _BLOCK, exclude)
  found = lambda block, *rest: work(candidates(block, names or retriever.names, depth, times), *rest)
  return cpu_cores.in_order(found, blocks, *more)


def _joined(parts: list[Ranking], k: int) -> Ranking:
  return Ranking(*(np.concatenate(arrays) for arrays in zip(padding(0, k), *parts)))
