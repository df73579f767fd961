"""Computes losses over all labels in memory O(B · chunk + L · D), without the matrix of all scores.

A row's loss depends on its scores only through those of its positives and one number that sums up the rest: a
log-sum-exp, a sum of softplus, the threshold of SoftTop-k. `_summarise` finds both in passes over chunks of
labels; its gradient is one more pass. Each pass computes the scores again, unless `keeps_scores` holds all of
them. The rest of each loss, on `[B, P]`, is in `streaming_losses`, and JAX differentiates it.

Products and sums are float32 for inputs of any type, unless `precision` asks for less. Two bfloat16 tables
are multiplied without conversion if the hardware can; the cotangent of the scores is then rounded to bfloat16
too. Over a mesh, arrays with a row per query are split over 'data', and those with a row per label over
'label'. Each device scores its own block, and the parts of a row are combined (DEXML, section B.5). B and L
need not divide by the mesh.
docs/formulas.md, "Streaming loss" and docs/formulas.md, "Label sharding".
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from xmc_jax.ops import chunked_scores
from xmc_jax.ops.chunked_scores import Pool, Scores
from xmc_jax.ops.streaming_losses import KINDS, Summary
from xmc_jax.types import Array, PyTree


class _Plan(NamedTuple):
  """Holds the settings of a call that are fixed when it is compiled."""

  kind: str
  chunk: int
  mesh: Mesh | None
  precision: str
  keeps_scores: bool


def streaming_loss(
  kind: str,
  queries: Array,
  labels: Array,
  positives: Array,
  *,
  chunk: int,
  temperature: float | Array = 1.0,
  weights: Array | None = None,
  excluded: Array | None = None,
  unsampled: Array | None = None,
  bias: Array | None = None,
  where: Array | None = None,
  mesh: Mesh | None = None,
  precision: str = "float32",
  keeps_scores: bool = False,
  **kind_options: float | Array,
) -> Array:
  r"""Computes a loss of each query against all labels, and its gradient, `chunk` labels at a time.

  .. math::
    \mathrm{loss}(s_b, y_b), \quad s_{bl} = \langle q_b, z_l \rangle / \tau + c_l, \quad y_{bl} = [l \in P_b]

  The loss is `losses.softmax`, `decoupled_softmax`, `binary` or `soft_top_k_loss`.
  Gradients flow to `queries`, `labels`, `temperature` and `weights`, by `jax.grad`.

  Args:
    kind: 'softmax', 'decoupled_softmax', 'binary' or 'soft_top_k'.
    queries: `[B, D]`.
    labels: `[L, D]`.
    positives: `[B, P]` columns of the row's true labels, each once; -1 is none.
      A positive of weight 0 still is a positive.
    chunk: labels scored at once, on each device.
    temperature: τ > 0, a scalar.
    weights: `[B, P]`; by default 1 / max(1, number of the row's positives). 'binary' has none.
    excluded: `[B, F]` columns that the row's loss must not see, even where they are positives; -1 is none.
    unsampled: `[B, U]` more excluded columns, none of them in `positives`, which is not checked: true labels
      that were not sampled and that the loss must not see.
    bias: `[L]` c, added to the scores, without a gradient; 0 by default.
    where: `[L]` bool, True for a real label; others are as if not there.
    mesh: of axes ('data', 'label'); by default the one device of the inputs.
    precision: how scores and gradients are multiplied; see `ops.precision.algorithm`.
    keeps_scores: holds the `[B, L]` scores until the gradient is there: fewer products, the same values.
    **kind_options: for 'soft_top_k' `k` and `alpha` (1 by default), for 'binary' `prior` (0 by default),
      which is subtracted from all scores, for instance log L if classifiers have no bias; numbers or `[B]`.

  Returns:
    `[B]` float32 loss of each row.

  Example:
    >>> queries, labels = jnp.zeros((1, 2)), jnp.ones((4, 2))
    >>> streaming_loss("decoupled_softmax", queries, labels, [[0, 1]], chunk=2)  # log 3
    Array([1.0986123], dtype=float32)
  """
  tables = [jnp.asarray(table) for table in (queries, labels, positives)]
  masks = jax.tree.map(jnp.asarray, (weights, excluded, unsampled, bias, where))
  _check(kind, *tables, *masks, chunk=chunk, kind_options=kind_options)
  plan = _Plan(kind, chunk, mesh, precision, keeps_scores)
  return _loss(plan, *tables, *masks, temperature, KINDS[kind].options | kind_options)


def _check(kind, queries, labels, positives, weights, excluded, unsampled, *of_labels, chunk, kind_options):
  if kind not in KINDS:
    raise ValueError(f"no loss of kind {kind!r}; there are {', '.join(map(repr, KINDS))}")
  if queries.ndim != 2 or labels.ndim != 2 or queries.shape[1] != labels.shape[1]:
    raise ValueError(f"queries [B, D] and labels [L, D] do not match: {queries.shape}, {labels.shape}")
  of_rows = {"positives [B, P]": positives, "excluded [B, F]": excluded, "unsampled [B, U]": unsampled}
  for name, columns in of_rows.items():
    if columns is not None and (columns.ndim != 2 or len(columns) != len(queries)):
      raise ValueError(f"{name} do not match queries: {columns.shape}, {queries.shape}")
  if weights is not None and weights.shape != positives.shape:
    raise ValueError(f"weights and positives [B, P] do not match: {weights.shape}, {positives.shape}")
  if weights is not None and not KINDS[kind].weighted:
    raise ValueError(f"{kind!r} takes no weights: it sums over all labels")
  for name, values in zip(("bias", "where"), of_labels):
    if values is not None and values.shape != labels.shape[:1]:
      raise ValueError(f"{name} [L] and labels do not match: {values.shape}, {labels.shape}")
  if chunk < 1:
    raise ValueError(f"chunk must be at least 1, got {chunk}")
  known = KINDS[kind].options
  wrong = sorted(kind_options.keys() - known.keys())
  missing = sorted(name for name, default in known.items() if default is None and name not in kind_options)
  if wrong or missing:
    raise ValueError(f"options of {kind!r} are {sorted(known)}; not known: {wrong}, missing: {missing}")


@functools.partial(jax.jit, static_argnums=0)
def _loss(plan, queries, labels, positives, weights, excluded, unsampled, bias, where, temperature, options):
  """Computes `streaming_loss` of inputs that are checked and converted to arrays."""
  num_rows, num_labels = len(queries), len(labels)
  queries, labels = (
    table if jnp.issubdtype(table.dtype, jnp.floating) else table.astype(jnp.float32)
    for table in (queries, labels)
  )
  positives = positives.astype(jnp.int32)
  excluded = jnp.full((num_rows, 0), -1, jnp.int32) if excluded is None else excluded.astype(jnp.int32)
  if where is not None:
    bias = jnp.where(where.astype(bool), 0.0 if bias is None else bias, -jnp.inf)

  def as_rows(value):
    return jax.lax.stop_gradient(jnp.broadcast_to(jnp.asarray(value, jnp.float32), (num_rows,)))

  real = positives >= 0
  if bias is not None and num_labels:
    real &= bias[jnp.where(real, positives, 0)] > -jnp.inf
  real &= ~jnp.any(positives[:, :, None] == excluded[:, None, :], axis=2)
  if unsampled is not None:  # joined after the comparison above, of [B, P, F] cells: P and U may be hundreds
    excluded = jnp.concatenate([excluded, unsampled.astype(jnp.int32)], axis=1)
  positives = jnp.where(real, positives, -1)
  if weights is None:
    weights = 1 / jnp.maximum(jnp.sum(real, axis=1, keepdims=True), 1)
  weights = jnp.where(real, weights, 0).astype(jnp.float32)
  options = jax.tree.map(as_rows, options)
  value, relative = _summarise(
    plan, queries, labels, jnp.asarray(temperature, jnp.float32), positives, excluded, bias, options
  )
  return KINDS[plan.kind].combine(value, relative, real, weights, options)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _summarise(plan, queries, labels, temperature, positives, excluded, bias, options):
  """Computes a number for each row that sums up its scores, `[B]`, and the scores of its positives `[B, P]`.

  Both are relative to a constant of the row; the scores are 0 where there is no positive.
  """
  return _summarise_forward(plan, queries, labels, temperature, positives, excluded, bias, options)[0]


def _summarise_forward(plan, queries, labels, temperature, positives, excluded, bias, options):
  pool = Pool(queries, labels, positives, excluded, bias, 1 / temperature)
  if plan.mesh is None:
    summary, kept = _forward_shard(plan, None, pool, options)
  else:
    padded, padded_options = _pad(pool, options, plan.mesh, value=1)
    shard = jax.shard_map(
      functools.partial(_forward_shard, plan, "label"),
      mesh=plan.mesh,
      in_specs=(_pool_specs(padded), P("data")),
      out_specs=(P("data"), _kept_specs(plan)),
      check_vma=False,  # the merged results are equal over 'label', but JAX cannot check that
    )
    summary, kept = shard(padded, padded_options)
    summary = jax.tree.map(lambda rows: rows[: len(queries)], summary)
  relative = jnp.where(positives >= 0, summary.found - summary.anchor[:, None], 0)
  return (summary.value, relative), (pool, summary, options, kept)


def _summarise_backward(plan, residuals, cotangents):
  pool, summary, options, kept = residuals
  kind, (d_value, d_relative) = KINDS[plan.kind], cotangents
  at_positives = d_relative
  if kind.with_positives:
    at_positives += d_value[:, None] * kind.slope(summary.rows, options, summary.found)
  rows = (summary.rows, options, d_value * pool.scale, at_positives * pool.scale)
  if plan.mesh is None:
    d_queries, d_labels = _backward_shard(plan, None, pool, rows, kept)
  else:
    padded, padded_rows = _pad(pool, rows, plan.mesh, value=0)
    shard = jax.shard_map(
      functools.partial(_backward_shard, plan, "label"),
      mesh=plan.mesh,
      in_specs=(_pool_specs(padded), P("data"), _kept_specs(plan)),
      out_specs=(P("data", None), P("label", None)),
      check_vma=False,
    )
    d_queries, d_labels = shard(padded, padded_rows, kept)
    d_queries, d_labels = d_queries[: len(pool.queries)], d_labels[: len(pool.labels)]
  # A score is <q, z> / τ and a constant, so that τ · d/dτ = -q · d/dq, summed over the rows.
  d_temperature = -jnp.sum(pool.queries.astype(jnp.float32) * d_queries) * pool.scale
  return d_queries.astype(pool.queries.dtype), d_labels, d_temperature, None, None, None, None


_summarise.defvjp(_summarise_forward, _summarise_backward)


def _forward_shard(
  plan: _Plan, axis: str | None, pool: Pool, options: PyTree
) -> tuple[Summary, Scores | None]:
  """Computes the summary of the shard's rows over the labels of all shards along `axis`, and kept scores."""
  kind, pool = KINDS[plan.kind], _own_columns(pool, axis)
  kept = None
  if plan.keeps_scores:
    kept = chunked_scores.compute(pool, with_positives=kind.with_positives, precision=plan.precision)
  fold = functools.partial(
    chunked_scores.fold,
    pool,
    chunk=plan.chunk,
    with_positives=kind.with_positives,
    axis=axis,
    precision=plan.precision,
    kept=kept,
  )
  return kind.summarise(fold, options), kept


def _backward_shard(
  plan: _Plan, axis: str | None, pool: Pool, rows: PyTree, kept: Scores | None
) -> tuple[Array, Array]:
  """Computes the gradients of the shard's queries, in float32, and of its labels."""
  kind, pool = KINDS[plan.kind], _own_columns(pool, axis)
  of_rows, options, d_value, at_positives = rows

  def slope(scores):
    return d_value[:, None] * kind.slope(of_rows, options, scores)

  dtype = pool.labels.dtype
  # If each device has a part of the rows, their gradients are summed in float32.
  partial = axis is not None and plan.mesh is not None and plan.mesh.shape["data"] > 1
  d_queries, d_labels = chunked_scores.gradients(
    pool,
    slope,
    at_positives,
    plan.chunk,
    labels_dtype=jnp.float32 if partial else dtype,
    precision=plan.precision,
    kept=kept,
  )
  if axis is None:
    return d_queries, d_labels
  return jax.lax.psum(d_queries, axis), jax.lax.psum(d_labels, "data").astype(dtype)


def _own_columns(pool: Pool, axis: str | None) -> Pool:
  """Renumbers columns, so that they count from the shard's first label instead of from the first of all."""
  if axis is None:
    return pool
  first = jax.lax.axis_index(axis) * len(pool.labels)
  return pool._replace(positives=pool.positives - first, excluded=pool.excluded - first)


def _pool_specs(pool: Pool) -> Pool:
  rows = P("data", None)
  return Pool._make((rows, P("label", None), rows, rows, None if pool.bias is None else P("label"), P()))


def _kept_specs(plan: _Plan) -> PyTree:
  # The positives' scores are equal over 'label'; the backward pass does not read them.
  return Scores._make((P("data", "label"), P("data", None))) if plan.keeps_scores else None


def _pad(pool: Pool, rows: PyTree, mesh: Mesh, value: float) -> tuple[Pool, PyTree]:
  """Pads to whole shards: with rows that have no positives, and labels that are not real."""
  num_labels = len(pool.labels)
  more_rows, more_labels = -len(pool.queries) % mesh.shape["data"], -num_labels % mesh.shape["label"]

  def pad(array, more, value=0):
    return jnp.pad(array, ((0, more),) + ((0, 0),) * (array.ndim - 1), constant_values=value)

  bias = pool.bias
  if more_labels:
    bias = pad(jnp.zeros(num_labels, jnp.float32) if bias is None else bias, more_labels, -jnp.inf)
  pool = Pool(
    pad(pool.queries, more_rows),
    pad(pool.labels, more_labels),
    pad(pool.positives, more_rows, -1),
    pad(pool.excluded, more_rows, -1),
    bias,
    pool.scale,
  )
  return pool, jax.tree.map(lambda array: pad(array, more_rows, value), rows)
