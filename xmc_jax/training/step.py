"""Compiles and runs one step of training."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from xmc_jax.distributed import sharding
from xmc_jax.ops import lazy_adam
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.training.optimizer import Optimizer
from xmc_jax.types import Array, Batch, Method, PyTree, RowUpdate, TrainState


class _Gradients(NamedTuple):
  """Holds the gradients of a step.

  Attributes:
    dense: of the parameters that are trained densely.
    of_rows: by table, `(ids, sums)` of the rows that the batch uses; each id once, padded with -1.
  """

  dense: PyTree
  of_rows: Mapping[str, tuple[Array, Array]]

  def without_rows_unless(self, is_finite: Array) -> "_Gradients":
    """Returns these gradients; unless `is_finite`, without any row of a table."""
    of_rows = {name: (jnp.where(is_finite, ids, -1), sums) for name, (ids, sums) in self.of_rows.items()}
    return self._replace(of_rows=of_rows)


class TrainStep:
  """Runs the jitted step, compiled once for each batch shape; compile time is measured separately.

  Of a table, a step differentiates, reads and writes only the batch's rows (`ops.lazy_adam`).

  Args:
    method: the method whose loss is minimised.
    mesh: the devices.
    settings: `config.train`; uses `seed`, `clip_norm` and `max_skipped_steps`.
    optimiser: trains the parameters.
    writer: gets the time of stage 'compile'.

  Attributes:
    num_programs: number of shapes compiled so far; a few at most, as pools and positives have few widths.
  """

  def __init__(
    self,
    method: Method,
    mesh: jax.sharding.Mesh,
    settings: ml_collections.ConfigDict,
    optimiser: Optimizer,
    writer: MetricWriter,
  ):
    self._method, self._settings, self._optimiser = method, settings, optimiser
    self._mesh = mesh
    self._may_skip = settings.max_skipped_steps > 0
    self._programs: dict[Any, jax.stages.Compiled] = {}
    self._writer = writer

  def first_state(self, params: PyTree, extra_state: PyTree) -> TrainState:
    """Returns the state at step 0, on the devices of the mesh."""
    dense, tables = _split(params, self._method.sparse_params)
    opt_state = self._optimiser.dense.init(dense), dict.fromkeys(tables)
    state = TrainState(np.zeros((), np.int32), params, opt_state, extra_state)
    state = jax.device_put(state, sharding.shard_tree(state, self._method.sharding_rules, self._mesh))
    moments = {name: lazy_adam.init(state.params[name]) for name in tables}
    return state._replace(opt_state=(state.opt_state[0], moments))

  def _step(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
    loss, metrics, extra_state, gradients = self._differentiate(state, batch)
    norm = optax.tree.norm((gradients.dense, [summed for _, summed in gradients.of_rows.values()]))
    gradients = self._clip(gradients, norm)
    is_finite = jnp.isfinite(loss) & jnp.isfinite(norm) if self._may_skip else None
    if is_finite is not None:
      gradients = gradients.without_rows_unless(is_finite)
    params, opt_state = self._apply(state, gradients)
    if is_finite is not None:
      params, opt_state = self._restore_unless(is_finite, state, params, opt_state)
    extra_state = _with_row_updates(extra_state, state.extra_state, is_finite, self._mesh)
    metrics = {"loss": loss, "gradient_norm": norm, **metrics}
    return TrainState(state.step + 1, params, opt_state, extra_state), metrics

  def _differentiate(
    self, state: TrainState, batch: Batch
  ) -> tuple[Array, dict[str, Array], PyTree, _Gradients]:
    """Returns `(loss, metrics, extra_state, gradients)` of a batch."""
    method = self._method
    key = jax.random.fold_in(jax.random.key(self._settings.seed), state.step)
    dense, tables = _split(state.params, method.sparse_params)
    ids = {name: rows_of(batch, state.extra_state) for name, rows_of in method.sparse_params.items()}
    taken = {name: lazy_adam.take(table, ids[name], mesh=self._mesh) for name, table in tables.items()}

    def total_loss(dense, taken):
      loss, metrics, extra_state = method.loss({**dense, **taken}, state.extra_state, batch, key)
      return loss, (metrics, extra_state)

    differentiate = jax.value_and_grad(total_loss, argnums=(0, 1), has_aux=True)
    (loss, (metrics, extra_state)), (of_dense, of_taken) = differentiate(dense, taken)
    of_rows = {name: lazy_adam.merge(ids[name], of_taken[name]) for name in tables}
    return loss, metrics, extra_state, _Gradients(of_dense, of_rows)

  def _clip(self, gradients: _Gradients, norm: Array) -> _Gradients:
    """Scales gradients down to the allowed norm if there are tables.

    Without tables the optimiser clips, because it gets all gradients.
    """
    clip_norm = self._settings.clip_norm
    if not (gradients.of_rows and clip_norm):
      return gradients
    scale = jnp.minimum(1.0, clip_norm / norm)
    of_rows = {name: (touched, scale * summed) for name, (touched, summed) in gradients.of_rows.items()}
    return _Gradients(jax.tree.map(lambda leaf: scale * leaf, gradients.dense), of_rows)

  def _apply(self, state: TrainState, gradients: _Gradients) -> tuple[PyTree, tuple[PyTree, PyTree]]:
    """Returns the parameters and the optimiser's state after a step."""
    dense, tables = _split(state.params, self._method.sparse_params)
    updates, dense_state = self._optimiser.dense.update(gradients.dense, state.opt_state[0], dense)
    params, moments = optax.apply_updates(dense, updates), {}
    for name, (touched, summed) in gradients.of_rows.items():
      params[name], moments[name] = lazy_adam.adam(
        tables[name],
        state.opt_state[1][name],
        touched,
        summed,
        count=state.step + 1,
        learning_rate=self._optimiser.table_rate(state.step),
        mesh=self._mesh,
      )
    return params, (dense_state, moments)

  def _restore_unless(
    self, is_finite: Array, state: TrainState, params: PyTree, opt_state: tuple[PyTree, PyTree]
  ) -> tuple[PyTree, tuple[PyTree, PyTree]]:
    """Restores the values before the step unless `is_finite`; tables need none, as no row was written."""
    dense, _ = _split(state.params, self._method.sparse_params)
    trained = {name: params[name] for name in dense}, opt_state[0]
    before = dense, state.opt_state[0]
    kept, dense_state = jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), trained, before)
    return params | kept, (dense_state, opt_state[1])

  @property
  def num_programs(self) -> int:
    return len(self._programs)

  def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
    shapes = jax.tree.structure(batch), tuple(leaf.shape for leaf in jax.tree.leaves(batch))
    if shapes not in self._programs:
      with self._writer.stage("compile"):
        self._programs[shapes] = self.lower(state, batch).compile()
    return self._programs[shapes](state, batch)

  def lower(self, state: TrainState, batch: Batch) -> jax.stages.Lowered:
    """Traces the step, of arrays or of shapes with shardings; it donates the state and keeps its layout."""
    layout = jax.tree.map(lambda leaf: leaf.sharding, state)
    program = jax.jit(self._step, donate_argnums=0, out_shardings=(layout, None))
    return program.lower(state, batch)


def _with_row_updates(
  extra_state: PyTree, before: PyTree, is_finite: Array | None, mesh: jax.sharding.Mesh
) -> PyTree:
  """Returns `extra_state` with each RowUpdate written, or `before` unless `is_finite` (None is True)."""

  def after(new, old):
    if not isinstance(new, RowUpdate):
      return new if is_finite is None else jnp.where(is_finite, new, old)
    ids = new.ids if is_finite is None else jnp.where(is_finite, new.ids, -1)
    return lazy_adam.put(old, ids, new.rows, mesh=mesh)

  return jax.tree.map(after, extra_state, before, is_leaf=lambda leaf: isinstance(leaf, RowUpdate))


def _split(params: PyTree, tables: Mapping[str, Any]) -> tuple[PyTree, PyTree]:
  """Returns `(parameters that are trained densely, the method's tables)`."""
  dense = {name: value for name, value in params.items() if name not in tables}
  return dense, {name: params[name] for name in tables}
