"""Prepares vectors for clustering, and halves groups of unit vectors again and again (clusters.py)."""

import concurrent.futures
import functools
import os

import jax
import jax.numpy as jnp
import numpy as np

from xmc_jax.distributed import runtime
from xmc_jax.models import normalize
from xmc_jax.types import Array

_STARTS = 6  # pairs of vectors that the search for a group's halves starts from; the best result wins
_ROUNDING = 1e-6  # a start wins by more than this in mean cosine, so that rounding never chooses
_ITERATIONS = 6  # per start, at most
LAST_ITERATIONS = 10  # from the best result, at most
TOLERANCE = 1e-4  # iterations stop when the gain in mean cosine is below this
SAMPLE = 1024  # vectors of a group that the starts use; the last iterations use all
_PART_BYTES = 1 << 20  # bytes of the groups that a core handles together: they stay in its cache


@jax.jit
def unit_rows(vectors: Array, order: Array) -> Array:
  """Returns the vectors `[N, D]` in `order`, as float32 scaled to length 1; zero vectors stay zero."""
  rows = jnp.take(vectors, order, axis=0, mode="clip").astype(jnp.float32)
  largest = jnp.max(jnp.abs(rows), axis=1, keepdims=True, initial=0)
  return normalize(rows / jnp.where(largest > 0, largest, 1))  # squares neither overflow nor underflow


def shuffled(count: int, key: Array) -> np.ndarray:
  """Returns a random permutation `[count]` int32, by NumPy: JAX sorts for this, which takes longer."""
  return np.random.default_rng(np.asarray(jax.random.key_data(key))).permutation(count).astype(np.int32)


def finite_matrix(vectors: Array) -> Array:
  """Checks that vectors `[N, D]` are finite, and returns them on the device, or on the CPU if it is full.

  Raises:
    ValueError: they are not.
  """
  vectors = jax.device_put(vectors, runtime.device_with_room(2.5 * 4 * np.size(vectors)))
  finite = np.asarray(_finite_rows(vectors))
  if not finite.all():
    first = np.argmin(finite)
    raise ValueError(f"vectors hold NaN or infinity in {np.sum(~finite)} rows, first in row {first}")
  return vectors


@jax.jit
def _finite_rows(vectors: Array) -> Array:
  return jnp.all(jnp.isfinite(vectors), axis=1)


def halve(parts: list[tuple[jax.Array, jax.Array]], levels: int) -> np.ndarray:
  """Halves one group, `[1, N, D]` and indices `[1, N]`, `levels` times; returns clusters' indices `[n, P]`.

  Replaces the contents of `parts` at each level, to free their memory.
  """
  devices = list(parts[0][0].devices())
  on_cpu = len(devices) == 1 and devices[0].platform == "cpu"  # several devices need calls in one fixed order

  def split(part):
    return _split(*part, cut=on_cpu and part[0].nbytes > _PART_BYTES)

  num_threads = min(4, os.cpu_count() or 1) if on_cpu else 1
  with concurrent.futures.ThreadPoolExecutor(num_threads, "clusters") as pool:
    for _ in range(levels):
      halves = [part for split_parts in pool.map(split, parts) for part in split_parts]
      parts[:] = halves
      del halves
  return np.concatenate([np.asarray(order) for _, order in parts])


@functools.partial(jax.jit, static_argnames="cut")
def _split(rows: Array, order: Array, *, cut: bool) -> list[tuple[Array, Array]]:
  """Halves each group of a level.

  Args:
    rows: `[G, P, D]` groups of unit vectors in random order, which is kept; padded with zeros.
    order: `[G, P]` int32 indices of the vectors, padded with -1 at the end.
    cut: whether to return the groups as two parts.

  Returns:
    One part or two: `[n, ceil(P / 2), D]` and its indices.
  """
  where = order >= 0
  direction, _ = _lloyd(rows, where, start(rows[:, :SAMPLE], where[:, :SAMPLE]), LAST_ITERATIONS)
  places, kept = halves(_scores(rows, direction), where)
  order = jnp.where(kept, jnp.take_along_axis(order, places, axis=1), -1)
  rows = jnp.take_along_axis(rows, places[:, :, None], axis=1, mode="clip") * kept[:, :, None]
  num_parts, half = 2 if cut else 1, places.shape[1] // 2
  rows = rows.reshape(num_parts, -1, half, rows.shape[2])
  order = order.reshape(num_parts, -1, half)
  return [(rows[part], order[part]) for part in range(num_parts)]


@jax.jit
def halves(scores: Array, where: Array) -> tuple[Array, Array]:
  """Chooses the halves of each group: the members of largest score, and the others.

  Args:
    scores: `[G, P]`, each member's place along the direction.
    where: `[G, P]`, False for padding.

  Returns:
    places `[G, 2 ceil(P / 2)]` of the first half's members, then of the second's, each in their previous
    order; and which of these count, the others being padding.
  """
  num_groups, size = scores.shape
  half, num_first = -(-size // 2), (jnp.sum(where, axis=1) + 1) // 2
  keys, threshold = largest(_with_fixed_sign(scores, where), where, num_first)
  # First above the threshold, then ties, below it, and padding, each in its previous order.
  rank = jnp.where(where, 2 - (keys > threshold).astype(jnp.int32) - (keys >= threshold), 3)
  places = jnp.sort(rank * size + jnp.arange(size, dtype=jnp.int32), axis=1) % size
  starts = jnp.stack([jnp.zeros_like(num_first), num_first], axis=1)
  wanted = starts[:, :, None] + jnp.arange(half)  # [G, 2, half]
  ends = jnp.stack([num_first, jnp.sum(where, axis=1)], axis=1)
  places = jnp.take_along_axis(places, jnp.minimum(wanted, size - 1).reshape(num_groups, -1), axis=1)
  return places, (wanted < ends[:, :, None]).reshape(num_groups, -1)


def _with_fixed_sign(scores: Array, where: Array) -> Array:
  """Returns scores `[G, P]`, or their negatives so that rounding never decides which half is first."""
  count = jnp.sum(where, axis=1)
  middle = jnp.sum(jnp.where(where, scores, 0), axis=1) / jnp.maximum(count, 1)
  return jnp.where(((count % 2 == 0) & (scores[:, 0] < middle))[:, None], -scores, scores)


@jax.jit
def start(sample: Array, sampled: Array) -> Array:
  """Returns the direction `[G, D]` of the best halves of a sample of each group, from several starts."""
  count = jnp.maximum(jnp.sum(sampled, axis=1), 1)

  def from_pair(i, best):
    pair = jnp.stack([2 * i % count, (2 * i + 1) % count], axis=1)
    pair = jnp.take_along_axis(sample, pair[:, :, None], axis=1)
    found, similarity = _lloyd(sample, sampled, pair[:, 0] - pair[:, 1], _ITERATIONS)
    direction, best_similarity = best
    better = similarity > best_similarity + _ROUNDING * count  # often several starts find the same halves
    return jnp.where(better[:, None], found, direction), jnp.where(better, similarity, best_similarity)

  nothing = jnp.zeros_like(sample[:, 0]), jnp.full(count.shape, -jnp.inf)
  return jax.lax.fori_loop(0, _STARTS, from_pair, nothing)[0]


def _lloyd(rows: Array, where: Array, direction: Array, num_iterations: int) -> tuple[Array, Array]:
  """Runs Lloyd's iterations on each group's halves; returns the last direction `[G, D]`, similarity `[G]`.

  A group stops when it gains too little, whatever the others do: its halves do not depend on them.
  """
  count = jnp.sum(where, axis=1)
  total = _weighted_sum(rows, where)

  def step(state):
    i, direction, last, rising = state
    keys, threshold = largest(_scores(rows, direction), where, (count + 1) // 2)
    first = _weighted_sum(rows, keys >= threshold)  # includes all ties; padding is zero
    second = total - first
    similarity = jnp.linalg.norm(first, axis=1) + jnp.linalg.norm(second, axis=1)
    direction = jnp.where(rising[:, None], normalize(first) - normalize(second), direction)
    similarity = jnp.where(rising, similarity, last)
    return i + 1, direction, similarity, rising & (similarity - last > TOLERANCE * count)

  begun = jnp.int32(0), direction, jnp.full(count.shape, -jnp.inf), jnp.full(count.shape, True)
  ended = jax.lax.while_loop(lambda s: (s[0] < num_iterations) & jnp.any(s[3]), step, begun)
  return ended[1], ended[2]


@jax.jit
def largest(scores: Array, where: Array, count: Array) -> tuple[Array, Array]:
  """Returns integers `[G, P]` in the order of the scores, and each row's `count`-th largest `[G, 1]`."""
  lowest = jnp.iinfo(jnp.int32).min
  bits = jax.lax.bitcast_convert_type(scores, jnp.int32)
  keys = jnp.where(where, bits ^ ((bits >> 31) & jnp.iinfo(jnp.int32).max), lowest)

  def bisect(i, threshold):
    higher = threshold + (jnp.int32(1) << (31 - i))
    return jnp.where(jnp.sum(keys >= higher, axis=1, keepdims=True) >= count[:, None], higher, threshold)

  return keys, jax.lax.fori_loop(0, 32, bisect, jnp.full_like(keys[:, :1], lowest))


def _scores(rows: Array, direction: Array) -> Array:
  return jnp.einsum("gpd,gd->gp", rows, direction, precision=jax.lax.Precision.HIGHEST)


def _weighted_sum(rows: Array, where: Array) -> Array:
  return jnp.einsum("gpd,gp->gd", rows, where.astype(rows.dtype), precision=jax.lax.Precision.HIGHEST)
