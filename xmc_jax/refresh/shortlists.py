"""Hard negatives: the labels that the current embeddings confuse with a point's true ones."""

import functools
import math
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from xmc_jax import mesh, report, runtime
from xmc_jax.contract import Array, ConfigError
from xmc_jax.refresh.search import search, without

BACKENDS = ("auto", "exact", "scann")
RECALL = 0.95  # of the exact nearest k, which ScaNN's search is widened to reach
_AIM = RECALL + 0.01  # on the sample, which is off by some 0.005

_SMALLEST = 1000  # labels; ScaNN's codes need at least 16, and below this a tree is no help
# For 'auto' on a CPU. From 10,000 labels on, a query costs ScaNN a quarter to two thirds of the exact
# search's time, and 60 to 130 queries for each dimension make up for the index: its time grows with L as the
# exact search's does, so that this number hardly depends on L (docs/performance.md).
_PAYS_LABELS, _PAYS_QUERIES = 10_000, 150
_SAMPLE = 200  # queries that are also searched exactly
_BLOCK = 1 << 20  # candidates at a time
_LEAVES = (1 / 32, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 5 / 16, 3 / 8, 1 / 2, 3 / 4, 1)  # of all, to search
_REORDERED = (8, 4, 2)  # times the depth
_PER_LEAF, _CODES = 128, 20_000  # labels that the tree and the codes are learnt from
_DIMS = 2  # a code's dimensions


def shortlist(
  queries: np.ndarray, labels: Array, k: int, *, backend: str = "auto", exclude=None, devices=None
) -> np.ndarray:
  """The k nearest labels of each query that are not excluded (ANCE, Xiong et al. 2021; DEXML, section 5.2).

  ScaNN (Guo et al., ICML 2020, anisotropic vector quantization) finds nearly all of them in a part of the
  time: a tree of sqrt(L) leaves learnt from 128 labels each, 4-bit codes for every two dimensions learnt from
  20,000 labels, and exact scores for the best by these codes. How many leaves are searched (1/32 to all) and
  how many labels are scored exactly (8, 4 or 2 for each that is wanted) is measured: the fewest that bring
  0.96 of the exact shortlists of 200 queries. One line says what was built and its recall. The same input
  gives the same shortlists, in any process and with any number of threads; ties stand in any order.

  Args:
    queries: `[N, D]` float32.
    labels: `[L, D]` float32.
    k: labels per query.
    backend: 'exact' is a blocked search on the device. 'scann' is ScaNN on the host's CPU; exact where it is
      not installed, for fewer than 1,000 labels and where labels are not finite. 'auto' is ScaNN where that
      is faster on this device: on CPUs, with many labels and queries.
    exclude: CSR `[N, L]` pairs to leave out, such as the true labels; None for none.
    devices: the mesh to search on; None is the device that `labels` are on.

  Returns:
    ids `[N, k]` int32, best first, padded with -1 where fewer than k labels are left: never with a label.

  Raises:
    ConfigError: no such backend.

  Example:
    >>> import numpy as np
    >>> shortlist(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), 2)
    array([[0, 1],
           [1, 0]], dtype=int32)
  """
  if backend not in BACKENDS:
    raise ConfigError(f"shortlist backend {backend!r} is not one of {', '.join(map(repr, BACKENDS))}")
  queries, width = np.asarray(queries, np.float32), min(k, len(labels))
  if backend == "auto":
    platform = devices.devices.flat[0].platform if devices is not None else _platform(labels)
    # Several processes search together what is exact; ScaNN would be built on each.
    backend = _choose(len(queries), labels.shape, platform) if runtime.is_alone() else "exact"
  nearest = _exact if backend == "exact" else _nearest
  found = nearest(queries, labels, width, exclude, devices)
  return np.pad(found, ((0, 0), (0, k - width)), constant_values=-1)


def _platform(labels: Array) -> str:
  return next(iter(labels.devices())).platform if isinstance(labels, jax.Array) else jax.default_backend()


def _choose(num_queries: int, shape: tuple[int, int], platform: str) -> str:
  """What 'auto' stands for, with labels `[L, D]` of this shape."""
  pays = shape[0] >= _PAYS_LABELS and num_queries >= _PAYS_QUERIES * shape[1]
  return "scann" if platform == "cpu" and pays else "exact"


def _exact(queries: np.ndarray, labels: Array, k: int, exclude, devices) -> np.ndarray:
  """Ids `[N, k]`, by searching everything."""
  return search(queries, labels, k, exclude=exclude, devices=devices).ids


def _nearest(queries: np.ndarray, labels: Array, k: int, exclude, devices) -> np.ndarray:
  """Ids `[N, k]` by ScaNN, or exact where it cannot be had or makes no sense."""
  # Among several processes this one works alone: another may have no ScaNN, and not join a common search.
  devices = devices if runtime.is_alone() else None
  on_host = np.asarray(mesh.fetch(labels), np.float32)
  # ScaNN ends the process on labels that are not finite, and will not search for no query.
  usable = len(labels) >= _SMALLEST and len(queries) > 0 and np.isfinite(on_host.sum(axis=1)).all()
  if not usable or _load() is None:
    return _exact(queries, labels, k, exclude, devices)
  start = time.perf_counter()
  index = _build(on_host, k)
  built = time.perf_counter() - start
  rows = np.sort(np.random.default_rng(0).permutation(len(queries))[:_SAMPLE])
  sample, left_out = queries[rows], None if exclude is None else exclude[rows]
  truth = search(sample, labels, k, exclude=left_out, devices=devices)
  index, recall = _tune(index, sample, k, left_out, truth)
  short = "" if recall >= RECALL else f", less than {RECALL}: shortlist backend 'exact' would miss nothing"
  report.say(
    f"shortlist by ScaNN: {len(labels):,} labels, {index.leaves:,} of {index.num_leaves:,} leaves searched, "
    f"{_DIMS} dimensions a code, {index.reordered} x {k} scored exactly; built in {built:.1f} s, tuned in "
    f"{time.perf_counter() - start - built:.1f} s; recall@{k} {recall:.3f} of {len(rows)} queries{short}"
  )
  return _find(index, queries, k, exclude)[1]


@functools.cache
def _load() -> Any:
  """The library, or None, which is said once."""
  try:
    import scann
  except ImportError as error:
    report.say(f"shortlist: exact, as ScaNN cannot be loaded ({error}); on Linux x86-64: pip install scann")
    return None
  return scann


class _Index(NamedTuple):
  """A searcher, and how far it looks.

  Attributes:
    searcher: ScaNN's.
    num_labels: L.
    num_leaves: of the tree.
    leaves: searched for k labels.
    reordered: labels scored exactly, in multiples of those wanted.
  """

  searcher: Any
  num_labels: int
  num_leaves: int
  leaves: int
  reordered: int


def _build(labels: np.ndarray, k: int) -> _Index:
  """A tree and codes for `[L, D]` labels.

  The tree starts from k-means++: from ScaNN's other start, random centres, every build comes out otherwise.
  """
  num_leaves = max(1, round(len(labels) ** 0.5))
  builder = _load().scann_ops_pybind.builder(labels, k, "dot_product")
  builder = builder.tree(
    num_leaves, num_leaves, training_sample_size=min(len(labels), _PER_LEAF * num_leaves), random_init=False
  )
  builder = builder.score_ah(
    _DIMS, anisotropic_quantization_threshold=0.2, training_sample_size=min(len(labels), _CODES)
  )
  searcher = builder.reorder(_REORDERED[0] * k).build()
  return _Index(searcher, len(labels), num_leaves, leaves=num_leaves, reordered=_REORDERED[0])


def _tune(index: _Index, queries: np.ndarray, k: int, exclude, truth) -> tuple[_Index, float]:
  """Narrowed to as few leaves as reach `_AIM`, and then to as few labels scored exactly; and its recall."""

  def measured(index: _Index) -> tuple[_Index, float]:
    return index, _recall(_find(index, queries, k, exclude)[0], truth)

  holding = math.ceil(2 * k * index.num_leaves / index.num_labels)  # leaves with some 2 k labels
  for part in _LEAVES:
    leaves = min(max(holding, round(part * index.num_leaves)), index.num_leaves)
    best = measured(index._replace(leaves=leaves))
    if best[1] >= _AIM:
      break
  for reordered in _REORDERED[1:]:
    fewer = measured(best[0]._replace(reordered=reordered))
    if fewer[1] < _AIM:
      break
    best = fewer
  return best


def _recall(scores: np.ndarray, truth) -> float:
  """The part of the exact shortlists that was found: what scores as high as their last label counts."""
  wanted = np.sum(truth.ids >= 0, axis=1, keepdims=True)
  last = np.min(np.where(truth.ids >= 0, truth.scores, np.inf), axis=1, keepdims=True)
  tolerance = 1e-5 * np.abs(np.where(np.isfinite(last), last, 0))  # rounding, of two ways to sum
  found = np.minimum(np.sum(scores >= last - tolerance, axis=1, keepdims=True), wanted)
  return float(np.sum(found) / max(np.sum(wanted), 1))


def _find(index: _Index, queries: np.ndarray, k: int, exclude) -> tuple[np.ndarray, np.ndarray]:
  """`(scores, ids)` `[N, k]`, excluded pairs left out.

  As in `search`, a row with n excluded labels is searched n deeper, rounded up to a power of two, and in as
  many more leaves. A row whose leaves held too few labels is searched once more, in all leaves.
  """
  counts = np.zeros(len(queries), np.int64) if exclude is None else np.diff(exclude.indptr)
  deeper = np.where(counts > 0, 1 << np.ceil(np.log2(np.maximum(counts, 1))).astype(np.int64), 0)
  depths = np.minimum(k + deeper, index.num_labels)
  ids = np.full((len(queries), k), -1, np.int32)
  scores = np.full((len(queries), k), -np.inf, np.float32)

  def fill(rows: np.ndarray, leaves: int) -> None:
    for depth in np.unique(depths[rows]).tolist():
      members = rows[depths[rows] == depth]
      searched, size = min(index.num_leaves, -(-leaves * depth // k)), max(1, _BLOCK // depth)
      for start in range(0, len(members), size):
        block = members[start : start + size]
        found = _find_block(index, queries[block], depth, searched)
        found = found if exclude is None else without(*found, exclude[block])
        scores[block], ids[block] = (array[:, :k] for array in found)

  fill(np.arange(len(queries)), index.leaves)
  if index.leaves < index.num_leaves:
    wanted = np.minimum(k, index.num_labels - counts)
    fill(np.flatnonzero(np.sum(ids >= 0, axis=1) < wanted), index.num_leaves)
  return scores, ids


def _find_block(index: _Index, queries: np.ndarray, depth: int, leaves: int) -> tuple[np.ndarray, np.ndarray]:
  """`(scores, ids)` `[n, depth]`; what ScaNN did not find it gives the score NaN and the id of a label."""
  reordered = min(index.reordered * depth, index.num_labels)
  ids, scores = index.searcher.search_batched_parallel(queries, depth, reordered, leaves)
  missing = np.isnan(scores)
  return np.where(missing, -np.inf, scores), np.where(missing, -1, ids.astype(np.int32))
