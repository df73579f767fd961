"""Indexes labels, to be searched many times, exactly or by ScaNN."""

import functools
import math
import pathlib
import threading
import time
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import scipy.sparse as sp
from jax.sharding import Mesh

from xmc_jax import console
from xmc_jax.distributed import runtime, sharding
from xmc_jax.distributed.split_table import SplitTable, Table
from xmc_jax.errors import ConfigError
from xmc_jax.retrieval.search import Ranking, padding, search, shard_table, with_bias_column, without
from xmc_jax.types import Array

BACKENDS = ("auto", "exact", "scann")
RECALL = 0.95  # fraction of the exact nearest k that ScaNN, or a TPU for shortlists, must find
_TARGET_RECALL = RECALL + 0.01  # required on the sample, whose recall is off by some 0.005

_SMALLEST = 1000  # labels; ScaNN's codes need at least 16, and with fewer than 1,000 a tree does not help
# For 'auto' on a CPU. From 10,000 labels on, ScaNN takes a quarter to two thirds of the exact search's time a
# query; 60 to 130 queries per dimension make up for building the index, whatever L is.
_SCANN_LABELS, _SCANN_QUERIES = 10_000, 150
_SAMPLE = 200  # queries that are also searched exactly
_BLOCK = 1 << 20  # candidates at a time
_LEAF_FRACTIONS = (1 / 32, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 5 / 16, 3 / 8, 1 / 2, 3 / 4, 1)  # of all, to search
_REORDERED = (8, 4, 2)  # times the depth
_SHALLOWEST = 10  # searched, at least: of the best 8 by their codes, the very best is missing once in ten
_PER_LEAF, _CODES, _DIMS = 128, 20_000, 2  # labels that tree and codes are learnt from; dimensions of a code


class _Searcher(NamedTuple):
  """Holds ScaNN's index and its search settings."""

  scann: Any
  num_labels: int
  num_leaves: int  # of the tree
  leaves: int  # that are searched for k labels
  reordered: int  # labels scored exactly, in multiples of k


_Tuned: TypeAlias = tuple[_Searcher, float]  # and its recall


class Index:
  """Searches labels many times by inner product.

  ScaNN (Guo et al., ICML 2020, anisotropic vector quantization) finds nearly all of the nearest labels in a
  fraction of the time. It has a tree of sqrt(L) leaves learnt from 128 labels each, 4-bit codes for every two
  dimensions learnt from 20,000 labels, and exact scores for the best labels by codes. Tuning chooses the
  fewest leaves to search (1/32 to all), then the fewest labels to score exactly (8, 4 or 2 times k), that
  reach a recall of 0.96 on 200 of the queries. One printed line tells what was built and its recall. ScaNN is
  built once, and tuned once per k with the same queries; every k below 10 is searched as 10.

  These queries are sampled from all queries so far when ScaNN is built. With `patience`, the first queries
  are searched exactly: for a handful of queries it is not worth building an index. Labels are no substitute
  for queries in tuning: in one test, a recall of 0.998 with labels as queries was 0.75 with real ones.

  The same calls in the same order give the same rankings, in any process and with any number of threads,
  except for the order of ties. Scores are inner products with both backends.

  Args:
    labels: `[L, D]` float32. They and the queries may be split over the processes.
    backend: 'exact' is a blocked search on the device. 'scann' is ScaNN on the host's CPU; exact search if it
      is not installed, for fewer than 1,000 labels and if vectors are not finite. 'auto' is ScaNN if that is
      faster: on CPUs, with many labels, as soon as there were many queries; but exact search if ScaNN cannot
      be tuned to a recall of 0.95, for instance for vectors without clusters.
    devices: the mesh to search on; None is the device that `labels` are on.
    name: the start of the printed line.
    patience: number of queries before ScaNN is built.

  Raises:
    ConfigError: the backend is unknown.
  """

  def __init__(
    self,
    labels: Array | Table,
    *,
    backend: str = "auto",
    devices: Mesh | None = None,
    name: str = "index",
    patience: int = 0,
  ):
    if backend not in BACKENDS:
      raise ConfigError(f"{name} backend {backend!r} is not one of {', '.join(map(repr, BACKENDS))}")
    if not runtime.is_alone():
      # Exact search is shared by all processes. With 'scann' each process works alone, because another
      # one may lack ScaNN and would then not join a common search.
      backend, devices = ("scann", None) if backend == "scann" else ("exact", devices)
    self._placed, self._backend, self._devices = shard_table(labels, devices), backend, devices
    self._name, self._patience, self._lock = name, patience, threading.Lock()
    self._shape = len(self._placed), self._placed.vectors.shape[1]
    self._num_seen, self._keys = 0, np.zeros(0)
    self._sample = (np.zeros((0, self._shape[1]), np.float32), sp.csr_matrix((0, self._shape[0]), dtype=bool))
    self._built: _Searcher | None = None
    self._tuned: dict[int, _Searcher | None] = {}  # by k; None is exact search

  def search(self, queries: Table, k: int, exclude: sp.csr_matrix | None = None) -> Ranking:
    """Returns the k best labels of each query by inner product, without excluded pairs; padded if too few.

    Args:
      queries: `[N, D]` float32.
      k: labels per query, at most L.
      exclude: CSR `[N, L]` pairs to leave out; None for none.
    """
    if isinstance(queries, SplitTable):  # all processes search for them together
      return search(queries, self._placed, k, exclude=exclude, devices=self._devices)
    queries = with_bias_column(np.asarray(queries, np.float32), self._shape[1])
    depth = max(k, min(_SHALLOWEST, len(self._placed)))
    searcher = self._searcher(queries, depth, exclude)
    if searcher is None:
      return search(queries, self._placed, k, exclude=exclude, devices=self._devices)
    ranking = _find(searcher, queries, depth, exclude)
    return Ranking(ranking.ids[:, :k], ranking.scores[:, :k])

  def save(self, folder: pathlib.Path) -> dict[str, int] | None:
    """Writes ScaNN's own files; returns the search settings of the k that was tuned last.

    Returns:
      Arguments of its `search_batched_parallel`; None, and writes no files, if search was exact so far.
    """
    tuned = [(depth, searcher) for depth, searcher in self._tuned.items() if searcher]
    if not tuned:
      return None
    depth, searcher = tuned[-1]
    folder.mkdir(parents=True, exist_ok=True)
    searcher.scann.serialize(str(folder), relative_path=True)  # so that the folder can be moved
    return {
      "final_num_neighbors": depth,
      "pre_reorder_num_neighbors": min(searcher.reordered * depth, searcher.num_labels),
      "leaves_to_search": searcher.leaves,
    }

  def _searcher(self, queries: np.ndarray, k: int, exclude: sp.csr_matrix | None) -> _Searcher | None:
    """Returns ScaNN tuned for this k; None if these queries are to be searched exactly."""
    # ScaNN rejects empty input, and finds nothing for a query that is not finite.
    if self._backend == "exact" or not len(queries) or not np.isfinite(queries.sum(axis=1)).all():
      return None
    with self._lock:
      if self._built is None and not self._is_time_to_build(queries, exclude):
        return None
      start = time.perf_counter()
      if self._built is None:
        on_host = np.asarray(sharding.to_host(self._placed.vectors)[: self._shape[0]], np.float32)
        # ScaNN ends the process if labels are not finite.
        if len(on_host) < _SMALLEST or not np.isfinite(on_host.sum(axis=1)).all() or _load() is None:
          self._backend = "exact"
          return None
        self._built = _build(on_host, k)
      if k not in self._tuned:
        self._tuned[k] = self._tune(k, start)
      return self._tuned[k]

  def _is_time_to_build(self, queries: np.ndarray, exclude: sp.csr_matrix | None) -> bool:
    """Returns whether to build ScaNN now; adds the queries to the sample of all queries so far."""
    sample, left_out = self._sample
    # Each new query gets a random key; the queries with the lowest keys are the sample.
    keys = np.concatenate([self._keys, np.random.default_rng((0, self._num_seen)).random(len(queries))])
    rows = np.sort(np.argsort(keys, kind="stable")[:_SAMPLE])
    old, new = rows[rows < len(sample)], rows[rows >= len(sample)] - len(sample)
    pairs = sp.csr_matrix((len(queries), self._shape[0]), dtype=bool) if exclude is None else exclude
    self._sample = np.concatenate([sample[old], queries[new]]), sp.vstack([left_out[old], pairs[new]], "csr")
    self._keys, self._num_seen = keys[rows], self._num_seen + len(queries)
    platform = next(iter(self._placed.vectors.devices())).platform
    chosen = self._backend if self._backend == "scann" else _choose(self._num_seen, self._shape, platform)
    return chosen == "scann" and self._num_seen >= self._patience

  def _tune(self, k: int, start: float) -> _Searcher | None:
    """Tunes ScaNN for this k and prints the result; returns None (exact search) if 'auto' misses RECALL."""
    built, (sample, left_out) = time.perf_counter(), self._sample
    truth = search(sample, self._placed, k, exclude=left_out, devices=self._devices)
    searcher, recall = _tune(cast(_Searcher, self._built), sample, k, left_out, truth)
    by_build = "" if self._tuned else f"built in {built - start:.1f} s, "
    misses = recall < RECALL and self._backend == "auto"
    remedy = "searching exactly instead" if misses else "backend 'exact' would miss nothing"
    short = "" if recall >= RECALL else f", less than {RECALL}: {remedy}"
    console.say(
      f"{self._name} by ScaNN: {searcher.num_labels:,} labels, {searcher.leaves:,} of "
      f"{searcher.num_leaves:,} leaves searched, {_DIMS} dimensions a code, {searcher.reordered} x {k} "
      f"scored exactly; {by_build}tuned in {time.perf_counter() - built:.1f} s; recall@{k} {recall:.3f} of "
      f"{len(sample)} queries{short}"
    )
    return None if misses else searcher


def _choose(num_queries: int, shape: tuple[int, int], platform: str) -> str:
  """Returns the backend that 'auto' selects for labels of shape `[L, D]`."""
  is_faster = shape[0] >= _SCANN_LABELS and num_queries >= _SCANN_QUERIES * shape[1]
  return "scann" if platform == "cpu" and is_faster else "exact"


@functools.cache
def _load() -> Any:
  """Imports ScaNN; prints a message once and returns None if that fails."""
  try:
    import scann
  except ImportError as error:
    console.say(f'search: exact without ScaNN ({error}); on Linux x86-64: pip install "xmc_jax[scann]"')
    return None
  return scann


def _build(labels: np.ndarray, k: int) -> _Searcher:
  """Builds a tree and codes for labels `[L, D]`.

  The tree starts from k-means++: with ScaNN's alternative, random centres, builds are not reproducible.
  """
  num_leaves = max(1, round(len(labels) ** 0.5))
  builder = _load().scann_ops_pybind.builder(labels, k, "dot_product")
  builder = builder.tree(
    num_leaves, num_leaves, training_sample_size=min(len(labels), _PER_LEAF * num_leaves), random_init=False
  )
  builder = builder.score_ah(
    _DIMS, anisotropic_quantization_threshold=0.2, training_sample_size=min(len(labels), _CODES)
  )
  with runtime.notes_left_out():
    scann = builder.reorder(_REORDERED[0] * k).build()
  return _Searcher(scann, len(labels), num_leaves, leaves=num_leaves, reordered=_REORDERED[0])


def _tune(searcher: _Searcher, queries: np.ndarray, k: int, exclude: sp.csr_matrix, truth: Ranking) -> _Tuned:
  """Returns a searcher with the fewest leaves, then exact scores, that reach the target, and its recall."""

  def measured(searcher: _Searcher) -> _Tuned:
    return searcher, _recall(_find(searcher, queries, k, exclude).scores, truth)

  holding = math.ceil(2 * k * searcher.num_leaves / searcher.num_labels)  # leaves with some 2 k labels
  for part in _LEAF_FRACTIONS:
    leaves = min(max(holding, round(part * searcher.num_leaves)), searcher.num_leaves)
    best = measured(searcher._replace(leaves=leaves))
    if best[1] >= _TARGET_RECALL:
      break
  for reordered in _REORDERED[1:]:
    fewer = measured(best[0]._replace(reordered=reordered))
    if fewer[1] < _TARGET_RECALL:
      break
    best = fewer
  return best


def _recall(scores: np.ndarray, truth: Ranking) -> float:
  """Returns the recall of exact shortlists; every label that scores as high as their last label counts."""
  possible = np.sum(truth.ids >= 0, axis=1, keepdims=True)
  last = np.min(np.where(truth.ids >= 0, truth.scores, np.inf), axis=1, keepdims=True)
  tolerance = 1e-5 * np.abs(np.where(np.isfinite(last), last, 0))  # rounding: the searches' sums differ
  good = np.minimum(np.sum(scores >= last - tolerance, axis=1, keepdims=True), possible)
  return float(np.sum(good) / max(np.sum(possible), 1))


def _find(searcher: _Searcher, queries: np.ndarray, k: int, exclude: sp.csr_matrix | None) -> Ranking:
  """Ranks the k best labels of each query without excluded pairs.

  As in `search`, a row with n excluded labels is searched n deeper, rounded up to a power of two, and in
  proportionally more leaves. A row with too few labels in its leaves is searched again in all leaves.
  """
  counts = np.zeros(len(queries), np.int64) if exclude is None else np.diff(exclude.indptr)
  deeper = np.where(counts > 0, 1 << np.ceil(np.log2(np.maximum(counts, 1))).astype(np.int64), 0)
  depths = np.minimum(k + deeper, searcher.num_labels)
  out = padding(len(queries), k)

  def fill(rows: np.ndarray, leaves: int) -> None:
    for depth in np.unique(depths[rows]).tolist():
      members = rows[depths[rows] == depth]
      searched, size = min(searcher.num_leaves, -(-leaves * depth // k)), max(1, _BLOCK // depth)
      for start in range(0, len(members), size):
        block = members[start : start + size]
        ranked = _find_block(searcher, queries[block], depth, searched)
        ranked = ranked if exclude is None else without(*ranked, exclude[block])
        out.scores[block], out.ids[block] = (array[:, :k] for array in ranked)

  fill(np.arange(len(queries)), searcher.leaves)
  if searcher.leaves < searcher.num_leaves:
    possible = np.minimum(k, searcher.num_labels - counts)
    fill(np.flatnonzero(np.sum(out.ids >= 0, axis=1) < possible), searcher.num_leaves)
  return out


def _find_block(
  searcher: _Searcher, queries: np.ndarray, depth: int, leaves: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns `(scores, ids)` `[n, depth]`; ScaNN marks missing labels by the score NaN, with any id."""
  reordered = min(searcher.reordered * depth, searcher.num_labels)
  ids, scores = searcher.scann.search_batched_parallel(queries, depth, reordered, leaves)
  missing = np.isnan(scores)
  return np.where(missing, -np.inf, scores), np.where(missing, -1, ids.astype(np.int32))
