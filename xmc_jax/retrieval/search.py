"""Searches for the best labels of many queries, in blocks, without excluded pairs; exactly, unless told."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jax.sharding import Mesh

from xmc_jax import ops
from xmc_jax.distributed import sharding, split_table
from xmc_jax.distributed.split_table import SplitTable, Table
from xmc_jax.retrieval import cpu_cores, host_search
from xmc_jax.types import Array

_SMALL_BLOCK = 64  # queries, at least: smaller products are slow
BLOCK, BLOCK_OF_ACCELERATORS = 512, 4096  # queries: their scores fit a CPU's cache, or occupy an accelerator
# (queries, k) -> a function that waits for their (scores, ids)
_Finder = Callable[[np.ndarray, int], Callable[[], tuple[np.ndarray, np.ndarray]]]
_T = TypeVar("_T")


class Ranking(NamedTuple):
  """Holds the ranked labels of each row, best first.

  Attributes:
    ids: `[N, k]` int32, padded with -1.
    scores: `[N, k]` float32, -inf for padding.
  """

  ids: np.ndarray
  scores: np.ndarray


def padding(num_rows: int, k: int) -> Ranking:
  """Returns a ranking of no labels, to be filled in."""
  return Ranking(np.full((num_rows, k), -1, np.int32), np.full((num_rows, k), -np.inf, np.float32))


def best_of(ids: np.ndarray, scores: np.ndarray, k: int) -> Ranking:
  """Ranks labels `[n, C]` by score, ties by rising id; returns the best k, padded."""
  scores = np.where(ids >= 0, scores, -np.inf)
  best = np.lexsort((ids, -scores), axis=-1)
  return first_of(np.take_along_axis(ids, best, axis=1), np.take_along_axis(scores, best, axis=1), k)


def first_of(ids: np.ndarray, scores: np.ndarray, k: int) -> Ranking:
  """Returns the first k of labels `[n, C]`, which are sorted best first, padded."""
  out, depth = padding(len(ids), k), min(k, ids.shape[1])
  out.ids[:, :depth] = ids[:, :depth]
  out.scores[:, :depth] = np.where(ids >= 0, scores, -np.inf)[:, :depth]
  return out


class ShardedTable(NamedTuple):
  """Holds the labels to search, on their devices."""

  vectors: jax.Array  # `[L', D]`; rows from L on are padding
  num_labels: int  # L

  def __len__(self) -> int:
    return self.num_labels


def shard_table(labels: Array | Table, devices: Mesh | None = None) -> ShardedTable:
  """Places labels `[L, D]` for `search`: split over a mesh's 'label' axis, or on their current device.

  Call it once for labels that are searched several times.
  """
  if devices is None:
    vectors = jnp.asarray(labels[:] if isinstance(labels, SplitTable) else labels)
  else:
    vectors = sharding.split_rows(labels, devices, "label")
  return ShardedTable(vectors, len(labels))


def with_bias_column(queries: np.ndarray, width: int) -> np.ndarray:
  """Appends a 1 to queries `[N, D]` if labels are `[L, D + 1]`: their last column is added to scores."""
  if width != queries.shape[1] + 1:
    return queries
  return np.column_stack([queries, np.ones_like(queries[:, :1])])


def search(
  queries: Table,
  labels: Array | Table | ShardedTable,
  k: int,
  *,
  exclude: sp.csr_matrix | None = None,
  devices: Mesh | None = None,
  recall: float = 1.0,
) -> Ranking:
  """Returns the k best labels of each query by inner product, without excluded pairs.

  A row with n excluded labels is searched n deeper, so that k candidates remain. Rows are sorted by n, and
  each block has the depth of its deepest row, n rounded up to a power of two. On a single CPU device NumPy
  searches, one block per core (host_search.py); otherwise `ops.top_k`, while the host ends the block before.

  Args:
    queries: `[N, D]` float32; like labels, maybe split over the processes. Every process gets all results.
    labels: `[L, D]` or `[L, D + 1]` (`with_bias_column`); with `devices`, on the host; or a `shard_table`.
    k: labels per query, at most L.
    exclude: CSR `[N, L]` pairs to leave out; None for none.
    devices: the mesh to search on; None is the device that `labels` are on.
    recall: the share of the k labels that a TPU has to find, on average; other devices find all.
  """
  placed, num_labels = labels if isinstance(labels, ShardedTable) else shard_table(labels, devices)
  queries = split_table.map_rows(queries, lambda rows: with_bias_column(rows, placed.shape[1]))
  hosted, num_queries = _on_one_cpu(placed), len(queries)
  queries = split_table.whole(queries) if hosted else queries  # threads cannot ask other processes for rows
  counts = np.zeros(num_queries, np.int64) if exclude is None else np.diff(exclude.indptr)
  out = padding(num_queries, k)
  block = _block_size(placed, num_queries)
  best = _on_devices(placed, num_labels, devices=devices, block=block, recall=recall)
  if hosted:
    on_host = np.asarray(placed, np.float32)[:num_labels]
    best = lambda rows, k: lambda: host_search.top_k(np.asarray(rows, np.float32), on_host, k)
  order = np.argsort(counts, kind="stable")

  def begin(start: int) -> Callable[[], None]:
    """Starts to search for a block of queries; returns what waits for it and stores the result."""
    rows = order[start : start + block]
    deepest = int(counts[rows[-1]])
    depth = min(k + (1 << (deepest - 1).bit_length() if deepest else 0), num_labels)
    wait = best(queries[rows], depth)

    def store() -> None:
      ranked = wait()
      if deepest and exclude is not None:
        ranked = without(*ranked, exclude[rows])
      out.scores[rows], out.ids[rows] = (array[:, :k] for array in ranked)

    return store

  starts = range(0, num_queries, block)
  if hosted:
    cpu_cores.in_order(lambda start: begin(start)(), starts)
  else:
    for store in one_behind(map(begin, starts)):
      store()
  return out


def _block_size(labels: jax.Array, num_queries: int) -> int:
  """Returns how many queries to search for at a time.

  On a CPU it depends only on their number, so that results do not differ between machines: the last bits of a
  product depend on its size.
  """
  block = BLOCK if _platform(labels) == "cpu" else BLOCK_OF_ACCELERATORS
  rounded = 1 << max(0, num_queries - 1).bit_length()  # on devices, each size is a compilation
  most = max(_SMALL_BLOCK, -(-num_queries // 8)) if _on_one_cpu(labels) else rounded
  return max(1, min(block, most))


def one_behind(begun: Iterable[_T]) -> Iterator[_T]:
  """Yields each item once the next one has begun: the devices work on that while the host ends this one."""
  waiting: list[_T] = []
  for item in begun:
    yield from waiting
    waiting = [item]
  yield from waiting


def _on_devices(
  labels: Array, num_labels: int, *, devices: Mesh | None, block: int, recall: float
) -> _Finder:
  def best(queries: np.ndarray, k: int) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    part: Array = np.pad(queries, ((0, block - len(queries)), (0, 0)))
    part = part if devices is None else sharding.split_rows(part, devices, "data")
    arrays = ops.top_k(part, labels, k, mesh=devices, num_valid=num_labels, recall=recall)

    def wait() -> tuple[np.ndarray, np.ndarray]:
      scores, ids = (sharding.to_host(array)[: len(queries)] for array in arrays)
      return scores, ids

    return wait

  return best


def _on_one_cpu(labels: jax.Array) -> bool:
  return len(labels.devices()) == 1 and _platform(labels) == "cpu"


def _platform(array: jax.Array) -> str:
  return next(iter(array.devices())).platform


def values_at(matrix: sp.csr_matrix, ids: np.ndarray) -> np.ndarray:
  """Looks ids `[n, k]` up in a CSR `[n, L]`; returns float32, 0 without an entry; undefined for id -1."""
  if not matrix.nnz:
    return np.zeros(ids.shape, np.float32)
  if not matrix.has_sorted_indices:
    matrix.sort_indices()
  width = np.int64(matrix.shape[1])
  keys = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)) * width + matrix.indices
  wanted = np.arange(len(ids))[:, None] * width + ids
  places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
  return np.where(keys[places] == wanted, matrix.data[places], 0).astype(np.float32)


def contained(ids: np.ndarray, matrix: sp.csr_matrix) -> np.ndarray:
  """Returns which ids `[n, k]` are entries of their row in a CSR `[n, L]`; id -1 is none."""
  return (ids >= 0) & (values_at(matrix, ids) != 0)


def without(scores: np.ndarray, ids: np.ndarray, exclude: sp.csr_matrix) -> tuple[np.ndarray, np.ndarray]:
  """Replaces excluded pairs by padding at the end of their rows; keeps the order of the rest."""
  out = contained(ids, exclude) | (ids < 0)
  order = np.argsort(out, axis=1, kind="stable")
  ids, scores = np.where(out, -1, ids), np.where(out, -np.inf, scores)
  return np.take_along_axis(scores, order, 1), np.take_along_axis(ids, order, 1)
