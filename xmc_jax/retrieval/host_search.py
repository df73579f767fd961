"""Exact nearest labels on a CPU: products and selection in NumPy, a block of queries to each core.

XLA selects with one core and some 20 µs a row. Here a chunk's scores stay in the cache, and a comparison
with each row's k-th best so far finds the few labels that are still of interest.
"""

import numpy as np

CHUNK = 2048  # labels scored at a time: with 512 queries 4 MB, which a core's share of the cache holds
_NOTHING = np.iinfo(np.int64).min  # the key of an empty place


def top_k(queries: np.ndarray, labels: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
  """The k labels of largest inner product with each query, as `ops.top_k` gives them.

  Args:
    queries: `[B, D]` float32.
    labels: `[L, D]` float32. One whose score is NaN or -inf is not found: -inf and -1 stand last for it.
    k: at most L.

  Returns:
    `(scores, ids)`, float32 and int32 `[B, k]`, best first; equal scores in the order of ids.
  """
  num_labels = len(labels)
  best = np.full((len(queries), k), _NOTHING)
  # Both arrays are written again and again: new ones of this size would come as untouched pages each time.
  scores, rises = (np.empty(len(queries) * min(CHUNK, num_labels), kind) for kind in (np.float32, bool))
  for start in range(0, num_labels, CHUNK):
    chunk = labels[start : start + CHUNK]
    shape = len(queries), len(chunk)
    part, mask = (array[: shape[0] * shape[1]].reshape(shape) for array in (scores, rises))
    best = _merge(best, np.matmul(queries, chunk.T, out=part), start, mask)
  return _read(np.sort(best, axis=1)[:, ::-1])


def _merge(best: np.ndarray, scores: np.ndarray, start: int, rises: np.ndarray) -> np.ndarray:
  """The k largest keys of those found before `[B, k]` and of a chunk's scores `[B, n]`, in any order.

  `rises`, `[B, n]` bool, is overwritten.
  """
  (num_rows, k), width = best.shape, scores.shape[1]
  if start == 0 and k < width:
    np.greater_equal(scores, np.partition(scores, width - k, axis=1)[:, width - k, None], out=rises)
  else:
    # A later label must be better than the k-th so far: with an equal score its id is the higher one.
    np.greater(scores, _read(best.min(axis=1, keepdims=True))[0], out=rises)
  found = np.flatnonzero(rises)
  if not len(found):
    return best
  rows, columns = np.divmod(found, width)
  counts = np.bincount(rows, minlength=num_rows)
  places = np.arange(len(found)) - np.repeat(np.cumsum(counts) - counts, counts)
  most = int(counts.max())
  candidates = np.full((num_rows, k + most), _NOTHING)
  candidates[:, :k] = best
  candidates[rows, k + places] = _keys(scores.ravel()[found], columns + start)
  return np.partition(candidates, most, axis=1)[:, most:]


def _keys(scores: np.ndarray, ids: np.ndarray) -> np.ndarray:
  """int64 keys in the order of scores, and among equal ones in the reverse order of ids."""
  bits = (scores + np.float32(0)).view(np.int32)  # -0.0 becomes 0.0
  return (_flip(bits).astype(np.int64) << 32) | (np.iinfo(np.int32).max - ids)


def _read(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The scores and ids of keys; -inf and -1 where there is nothing."""
  nothing = keys == _NOTHING
  scores = _flip((keys >> 32).astype(np.int32)).view(np.float32)
  ids = (np.iinfo(np.int32).max - (keys & np.iinfo(np.int32).max)).astype(np.int32)
  return np.where(nothing, np.float32(-np.inf), scores), np.where(nothing, np.int32(-1), ids)


def _flip(bits: np.ndarray) -> np.ndarray:
  """Between the bits of a float32 and an int32 of the same order; its own inverse."""
  return bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
