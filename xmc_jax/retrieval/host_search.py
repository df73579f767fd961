"""Finds the exact nearest labels on a CPU: products and selection in NumPy, one block of queries per core.

XLA selects on one core, in some 20 µs per row. Here the scores of a chunk stay in the cache, and a comparison
with each row's k-th best score so far finds the few labels that can still enter the top k.
"""

import numpy as np

CHUNK = 2048  # labels scored at a time: 4 MB with 512 queries, which fit into a core's share of the cache
_EMPTY = np.iinfo(np.int64).min  # the key of an empty place


def top_k(queries: np.ndarray, labels: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns `(scores, ids)` `[B, k]` like `ops.top_k`, of queries `[B, D]` and labels `[L, D]`, k at most L.

  A label with a score of NaN or -inf is not found; -inf and -1 pad its row.
  """
  num_labels = len(labels)
  best = np.full((len(queries), k), _EMPTY)
  # Both arrays are reused: new arrays of this size would cost page faults each time.
  scores, beats = (np.empty(len(queries) * min(CHUNK, num_labels), kind) for kind in (np.float32, bool))
  for start in range(0, num_labels, CHUNK):
    chunk = labels[start : start + CHUNK]
    shape = len(queries), len(chunk)
    part, mask = (array[: shape[0] * shape[1]].reshape(shape) for array in (scores, beats))
    best = _merge(best, np.matmul(queries, chunk.T, out=part), start, mask)
  return _read(np.sort(best, axis=1)[:, ::-1])


def _merge(best: np.ndarray, scores: np.ndarray, start: int, beats: np.ndarray) -> np.ndarray:
  """Returns the k largest keys among the best so far `[B, k]` and a chunk's scores `[B, n]`, unordered.

  Overwrites the buffer `beats`, `[B, n]` bool.
  """
  (num_rows, k), width = best.shape, scores.shape[1]
  if start == 0 and k < width:
    np.greater_equal(scores, np.partition(scores, width - k, axis=1)[:, width - k, None], out=beats)
  else:
    # A later label must beat the k-th so far: in a tie its id is higher, so it loses.
    np.greater(scores, _read(best.min(axis=1, keepdims=True))[0], out=beats)
  better = np.flatnonzero(beats)
  if not len(better):
    return best
  rows, columns = np.divmod(better, width)
  counts = np.bincount(rows, minlength=num_rows)
  places = np.arange(len(better)) - np.repeat(np.cumsum(counts) - counts, counts)
  most = int(counts.max())
  candidates = np.full((num_rows, k + most), _EMPTY)
  candidates[:, :k] = best
  candidates[rows, k + places] = _keys(scores.ravel()[better], columns + start)
  return np.partition(candidates, most, axis=1)[:, most:]


def _keys(scores: np.ndarray, ids: np.ndarray) -> np.ndarray:
  """Returns int64 keys that sort by score, and for equal scores by descending id."""
  bits = (scores + np.float32(0)).view(np.int32)  # -0.0 becomes 0.0
  return (_flip(bits).astype(np.int64) << 32) | (np.iinfo(np.int32).max - ids)


def _read(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns the scores and ids of keys; -inf and -1 for empty places."""
  nothing = keys == _EMPTY
  scores = _flip((keys >> 32).astype(np.int32)).view(np.float32)
  ids = (np.iinfo(np.int32).max - (keys & np.iinfo(np.int32).max)).astype(np.int32)
  return np.where(nothing, np.float32(-np.inf), scores), np.where(nothing, np.int32(-1), ids)


def _flip(bits: np.ndarray) -> np.ndarray:
  """Maps the bits of a float32 to an int32 of the same order, and back: it is its own inverse."""
  return bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
