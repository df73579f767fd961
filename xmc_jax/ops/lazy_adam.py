"""Updates large tables by row-sparse ("lazy") Adam: a step reads and writes only the rows that it touches.

It is for tables with a row per label or per cluster, of which a batch touches a few (docs/formulas.md,
"Row-sparse Adam"). A step takes its rows out of the table, differentiates with respect to these, and passes
ids and gradients to `adam`:

  rows = take(table, ids)
  loss, gradients = jax.value_and_grad(loss_of_rows)(rows)
  table, moments = adam(table, moments, *merge(ids, gradients), count=count, learning_rate=1e-3)

Inside a jitted function that donates table and moments, all updates are in place, if the gradients depend on
every other read of the table in that function. XLA keeps a copy of the table for a read that could also come
after the rows are written.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from xmc_jax.distributed.sharding import LABEL_ROWS
from xmc_jax.types import Array, PyTree

_B1, _B2, _EPSILON = 0.9, 0.999, 1e-8


class RowMoments(NamedTuple):
  """Holds Adam's running means for every row of a table, `[L, D]` each."""

  mean: Array  # of the gradient
  square: Array  # of its square


def init(table: Array) -> RowMoments:
  """Returns moments of zeros for a table `[L, D]`, float32 at least, sharded like the table."""
  dtype = jnp.promote_types(table.dtype, jnp.float32)
  zeros = lambda: RowMoments(jnp.zeros(table.shape, dtype), jnp.zeros(table.shape, dtype))
  sharding = None
  if isinstance(table, jax.Array) and not isinstance(table, jax.core.Tracer) and table.committed:
    sharding = table.sharding
  return jax.jit(zeros, out_shardings=sharding)()


def take(table: Array, ids: Array, mesh: Mesh | None = None) -> Array:
  """Returns the rows `[R, D]` of a table `[L, D]` that have these ids `[R]`; zeros for an id of -1.

  Over a mesh, the table's rows are split over `sharding.LABEL_ROWS`; every device has the ids and the result.
  """
  if mesh is None or mesh.size == 1:
    return _gather(table, _places(ids, table.shape[0]))

  @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(LABEL_ROWS), P()), out_specs=P())
  def take_shard(table, ids):
    return jax.lax.psum(_gather(table, _own_places(ids, table.shape[0])), LABEL_ROWS)

  return take_shard(table, ids)


def put(table: Array, ids: Array, rows: Array, mesh: Mesh | None = None) -> Array:
  """Returns the table `[L, D]` with rows `[R, D]` written at these ids `[R]`: no id twice, -1 for none.

  Over a mesh, the table is split as for `take`.
  """
  return _on_own_rows(_set, mesh, table, ids, rows)


def merge(ids: Array, rows: Array) -> tuple[Array, Array]:
  """Sums the rows that have the same id.

  Args:
    ids: `[R]` int32, -1 for a row that does not count; it may hold any numbers.
    rows: `[R, D]`, for instance the gradients of the rows that `take` returned.

  Returns:
    `(ids, sums)`: the different ids `[R]` int32, rising, padded with -1; the sums `[R, D]`, float32 at least,
    zeros at the padding.

  Example:
    >>> import jax.numpy as jnp
    >>> ids, sums = merge(jnp.array([7, -1, 3, 7]), jnp.array([[1.0], [9.0], [2.0], [10.0]]))
    >>> ids, sums[:, 0]
    (Array([ 3,  7, -1, -1], dtype=int32), Array([ 2., 11.,  0.,  0.], dtype=float32))
  """
  num_rows = ids.shape[0]
  last = jnp.iinfo(jnp.int32).max
  ids = jnp.where(ids < 0, last, ids).astype(jnp.int32)
  order = jnp.argsort(ids)
  ordered = ids[order]
  first = jnp.diff(ordered, prepend=-1) > 0
  slots = jnp.where(ordered < last, jnp.cumsum(first) - 1, num_rows)
  unique = jnp.full(num_rows, -1, jnp.int32).at[slots].set(ordered, mode="drop")
  rows = rows.astype(jnp.promote_types(rows.dtype, jnp.float32))
  # Slots in the order of the rows: so the sum below needs no sorted copy of the rows.
  slots = jnp.zeros(num_rows, jnp.int32).at[order].set(slots.astype(jnp.int32), unique_indices=True)
  return unique, jnp.zeros_like(rows).at[slots].add(rows, mode="drop")


def adam(
  table: Array,
  moments: RowMoments,
  ids: Array,
  gradients: Array,
  *,
  count: int | Array,
  learning_rate: float | Array,
  mesh: Mesh | None = None,
) -> tuple[Array, RowMoments]:
  r"""Takes one step of Adam on the rows that have a gradient; all others stay the same, bit by bit.

  .. math::
    m_l \gets \beta_1 m_l + (1 - \beta_1) g_l, \quad v_l \gets \beta_2 v_l + (1 - \beta_2) g_l^2, \quad
    z_l \gets z_l - \lambda \frac{m_l / (1 - \beta_1^t)}{\sqrt{v_l / (1 - \beta_2^t)} + \epsilon}

  β₁ is 0.9, β₂ 0.999 and ε 1e-8. The count t is that of all steps, not of those that touched row l, as in
  PyTorch's SparseAdam and TensorFlow's LazyAdam. If a step does not touch a row, the row and its moments stay
  the same; Adam with a gradient of 0 would change both. If every step touches all rows, it is Adam as in
  optax, ε included (PyTorch's SparseAdam adds ε before v is corrected).

  Args:
    table: `[L, D]`.
    moments: as `init` made them, or the last step.
    ids: `[R]` int32 as from `merge`: no id twice, -1 for none. R may exceed L.
    gradients: `[R, D]`, a row for each id.
    count: t, the number of this step, counted from 1.
    learning_rate: λ.
    mesh: devices over which the rows of table and moments are split, by `sharding.LABEL_ROWS`; L divides by
      their number, and each device updates its own rows. By default the device of the inputs.

  Returns:
    `(table, moments)` after the step.
  """
  scalars = (jnp.asarray(count, jnp.int32), jnp.asarray(learning_rate, moments.mean.dtype))
  return _on_own_rows(_adam_rows, mesh, (table, moments), ids, gradients, scalars)


def _adam_rows(tables, places, gradients, scalars):
  """Runs `adam` on one device; a place beyond the table is no row."""
  table, moments = tables
  count, learning_rate = scalars
  gradients = gradients.astype(moments.mean.dtype)
  mean = _B1 * _gather(moments.mean, places) + (1 - _B1) * gradients
  square = _B2 * _gather(moments.square, places) + (1 - _B2) * gradients**2
  corrected_mean, corrected_square = mean / (1 - _B1**count), square / (1 - _B2**count)
  change = -learning_rate * corrected_mean / (jnp.sqrt(corrected_square) + _EPSILON)
  moments = RowMoments(_set(moments.mean, places, mean), _set(moments.square, places, square))
  return table.at[places].add(change.astype(table.dtype), mode="drop", unique_indices=True), moments


def _on_own_rows(
  work: Callable[..., Any], mesh: Mesh | None, tables: PyTree, ids: Array, *rest: PyTree
) -> Any:
  """Calls `work(tables, places of the ids, *rest)`, over a mesh on each device's own rows of the tables."""
  if mesh is None or mesh.size == 1:
    return work(tables, _places(ids, len(jax.tree.leaves(tables)[0])), *rest)

  def on_shard(tables, ids, *rest):
    return work(tables, _own_places(ids, len(jax.tree.leaves(tables)[0])), *rest)

  split = P(LABEL_ROWS)
  specs = (split, *(P() for _ in (ids, *rest)))
  return jax.shard_map(on_shard, mesh=mesh, in_specs=specs, out_specs=split)(tables, ids, *rest)


def _gather(table: Array, places: Array) -> Array:
  return jnp.asarray(table).at[places].get(mode="fill", fill_value=0)


def _set(table: Array, places: Array, rows: Array) -> Array:
  return jnp.asarray(table).at[places].set(rows.astype(table.dtype), mode="drop", unique_indices=True)


def _places(ids: Array, num_rows: int) -> Array:
  """Returns the row of each id; for ids outside the table, a place beyond it (a negative one would wrap)."""
  beyond = num_rows + jnp.arange(ids.shape[0], dtype=jnp.int32)
  return jnp.where((ids >= 0) & (ids < num_rows), ids, beyond)


def _own_places(ids: Array, num_rows: int) -> Array:
  """Returns `_places` among the rows of this device."""
  return _places(ids - jax.lax.axis_index(LABEL_ROWS) * num_rows, num_rows)
