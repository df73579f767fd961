"""Scores queries against a label table, a chunk of labels at a time, on one device or one shard.

The streaming losses use it: `fold` reduces all scores of a row to a small state, `gradients` multiplies a
function of all scores back into queries and labels. Neither holds more than `[B, chunk]` scores, unless it is
given those that `compute` computes once.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from xmc_jax.distributed import platform
from xmc_jax.ops.precision import algorithm
from xmc_jax.types import Array, PyTree


class Pool(NamedTuple):
  """Holds queries, the labels that they are scored against, and each row's positives and excluded columns."""

  queries: Array  # `[B, D]`
  labels: Array  # `[L, D]`
  positives: Array  # `[B, P]` int32 columns; a number outside [0, L) is no column
  excluded: Array  # `[B, F]` int32 columns that the row must not see, disjoint from `positives`
  bias: Array | None  # `[L]` float32, -inf for a column that is no label, or None if all are 0
  scale: Array  # float32 scalar; scores are `scale * <query, label> + bias`


class Reduction(NamedTuple):
  """Describes a sum over a row's scores that can be taken in parts. A score of -inf must add nothing."""

  start: Callable[[int], PyTree]  # `num_rows -> state` of no scores
  add: Callable[[PyTree, Array], PyTree]  # `(state, scores [B, n]) -> state`
  merge: Callable[[PyTree, str], PyTree]  # `(state, axis) -> state` over the shards along a mesh axis


class Scores(NamedTuple):
  """Holds the scores of a pool, computed once."""

  of_labels: Array  # `[B, L]` without bias; -inf for excluded labels, and for positives that take no part
  found: Array  # `[B, P]` of the positives, -inf where there is none


def compute(pool: Pool, *, with_positives: bool, precision: str = "float32") -> Scores:
  """Computes all scores of a pool; the arguments are those of `fold`."""
  scores, found = _hide(pool, _scorer(pool, precision)(0, len(pool.labels)), 0, with_positives)
  if pool.bias is not None:
    there = found > -jnp.inf
    found += jnp.where(there, pool.bias[jnp.where(there, pool.positives, 0)], 0)
  return Scores(scores, found)


def _hide(pool: Pool, scores: Array, start: Array | int, with_positives: bool) -> tuple[Array, Array]:
  """Sets to -inf what a row must not see in its scores `[B, n]` of the labels from `start` on.

  Returns:
    The scores `[B, n]`, and those of the positives `[B, P]`, -inf for those that are not among these labels.
  """
  num_positives = pool.positives.shape[1]
  cells = jnp.concatenate([pool.positives, pool.excluded], axis=1) - start
  first_hidden = num_positives if with_positives else 0
  read = _read(scores, cells)
  if cells.shape[1] > first_hidden:
    # No score is above infinity, so this is -inf. But it depends on `read`, which saves XLA a copy.
    hidden = jnp.where(read > jnp.inf, read, -jnp.inf)
    scores = _write(scores, cells[:, first_hidden:], hidden[:, first_hidden:])
  return scores, read[:, :num_positives]


def fold(
  pool: Pool,
  reduction: Reduction,
  chunk: int,
  *,
  with_positives: bool,
  axis: str | None = None,
  precision: str = "float32",
  kept: Scores | None = None,
) -> tuple[PyTree, Array]:
  """Reduces each row's scores over the real labels that are not excluded, with or without the positives.

  Args:
    pool: what to score.
    reduction: how the scores are reduced.
    chunk: labels scored at once.
    with_positives: whether the positives take part, or only all others.
    axis: mesh axis over which the labels are split, None for none.
    precision: how scores are multiplied; see `precision.algorithm`.
    kept: `compute` of the same pool; None computes the scores here.

  Returns:
    The reduction's state, and the scores of the positives `[B, P]`, -inf where there is none.
  """
  score = _scorer(pool, precision)

  def step(carry, start, width):
    state, found = carry
    if kept is None:
      scores, own = _hide(pool, _biased(pool, score(start, width), start), start, with_positives)
      found = jnp.maximum(found, own)
    else:
      scores = _biased(pool, _columns(kept.of_labels, start, width), start)
    return reduction.add(state, scores), found

  found = jnp.full(pool.positives.shape, -jnp.inf, jnp.float32) if kept is None else kept.found
  state, found = _for_each_chunk(step, (reduction.start(len(pool.queries)), found), len(pool.labels), chunk)
  if axis is None:
    return state, found
  return reduction.merge(state, axis), jax.lax.pmax(found, axis)


def gradients(
  pool: Pool,
  slope: Callable[[Array], Array],
  at_positives: Array,
  chunk: int,
  *,
  labels_dtype: DTypeLike,
  precision: str = "float32",
  kept: Scores | None = None,
) -> tuple[Array, Array]:
  """Multiplies a cotangent of the scores, given as a function of them, back into queries and labels.

  Args:
    pool: what is scored.
    slope: `scores [B, n] -> cotangent of <query, label> [B, n]`.
    at_positives: `[B, P]` that cotangent at the positives, instead of `slope`; excluded cells have 0.
    chunk: labels scored at once.
    labels_dtype: type of the labels' gradient.
    precision: as in `fold`, for the gradients as well.
    kept: as in `fold`; None computes the scores again.

  Returns:
    `[B, D]` float32 and `[L, D]`, over this shard's queries and labels alone.
  """
  cells = jnp.concatenate([pool.positives, pool.excluded], axis=1)
  at_cells = jnp.pad(at_positives, ((0, 0), (0, pool.excluded.shape[1])))
  native = _multiplies_natively(pool.queries, pool.labels)
  score = _scorer(pool, precision)

  def step(carry, start, width):
    d_queries, d_labels = carry
    block = _rows(pool.labels, start, width)
    scores = score(start, width) if kept is None else _columns(kept.of_labels, start, width)
    cotangent = slope(_biased(pool, scores, start))
    if pool.bias is not None:
      cotangent = jnp.where(jnp.isneginf(_rows(pool.bias, start, width)), 0, cotangent)
    if cells.shape[1]:
      cotangent = _write(cotangent, cells - start, at_cells)
    if native:
      cotangent = cotangent.astype(block.dtype)
    d_queries += multiply(cotangent, block, 1, 0, precision)
    d_block = multiply(cotangent, pool.queries, 0, 0, precision).astype(labels_dtype)
    return d_queries, jax.lax.dynamic_update_slice_in_dim(d_labels, d_block, start, 0)

  nothing = jnp.zeros(pool.queries.shape, jnp.float32), jnp.zeros(pool.labels.shape, labels_dtype)
  return _for_each_chunk(step, nothing, len(pool.labels), chunk)


def _scorer(pool: Pool, precision: str) -> Callable[[Array | int, int], Array]:
  """Returns the function `(start, width) -> scores [B, width]` of labels from `start` on, without bias."""
  native = _multiplies_natively(pool.queries, pool.labels)
  # Scaling queries instead saves a pass over the scores.
  queries = pool.queries if native else pool.queries.astype(jnp.float32) * pool.scale

  def score(start, width):
    scores = multiply(queries, _rows(pool.labels, start, width), 1, 1, precision)
    return scores * pool.scale if native else scores

  return score


def _biased(pool: Pool, scores: Array, start: Array | int) -> Array:
  """Adds the bias of labels from `start` on to scores `[B, n]`: chunk by chunk, to hold no second copy."""
  return scores if pool.bias is None else scores + _rows(pool.bias, start, scores.shape[1])


def multiply(a: Array, b: Array, axis_a: int, axis_b: int, precision: str = "float32") -> Array:
  """Contracts one axis of each of two matrices; sums are float32.

  Products are as `precision` says (`precision.algorithm`); two bfloat16 inputs ignore it.
  """
  native = _multiplies_natively(a, b)
  if not native:
    a, b = a.astype(jnp.float32), b.astype(jnp.float32)
  # With a single row or column there is no product kernel, and XLA for a GPU refuses all but plain float32.
  single = 1 in (*a.shape, *b.shape)
  chosen = jax.lax.Precision.HIGHEST if native or single else algorithm(precision)
  contracted = ((axis_a,), (axis_b,)), ((), ())
  return jax.lax.dot_general(a, b, contracted, precision=chosen, preferred_element_type=jnp.float32)


def _multiplies_natively(a: Array, b: Array) -> bool:
  """Returns whether to multiply both as bfloat16; on a CPU that is slower than as float32, so False there."""
  return a.dtype == b.dtype == jnp.bfloat16 and platform.name() != "cpu"


def _for_each_chunk(step: Callable, carry: PyTree, num_labels: int, chunk: int) -> PyTree:
  """Runs `step(carry, start, width)` over [0, num_labels) with width `chunk`, and once for the remainder."""
  whole, rest = divmod(num_labels, chunk)
  if whole:
    carry = jax.lax.fori_loop(0, whole, lambda i, carry: step(carry, i * chunk, chunk), carry)
  return step(carry, whole * chunk, rest) if rest else carry


def _rows(table: Array, start: Array | int, width: int) -> Array:
  return jax.lax.dynamic_slice_in_dim(table, start, width)


def _columns(scores: Array, start: Array | int, width: int) -> Array:
  return jax.lax.dynamic_slice_in_dim(scores, start, width, axis=1)


def _read(scores: Array, columns: Array) -> Array:
  """Reads scores `[B, n]` at `[B, P]` columns; -inf for columns outside [0, n)."""
  inside = (columns >= 0) & (columns < scores.shape[1])
  return jnp.where(inside, jnp.take_along_axis(scores, jnp.where(inside, columns, 0), axis=1), -jnp.inf)


def _write(scores: Array, columns: Array, values: Array | float) -> Array:
  """Writes `values` into scores `[B, n]` at `[B, P]` columns; ignores columns outside [0, n)."""
  width = scores.shape[1]
  inside = (columns >= 0) & (columns < width)
  rows = jnp.arange(scores.shape[0])[:, None]
  return jnp.asarray(scores).at[rows, jnp.where(inside, columns, width)].set(values, mode="drop")
