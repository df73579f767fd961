"""One step of training, compiled, and a watch over the numbers that it gives."""

import math
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from xmc_jax.console import say
from xmc_jax.distributed import sharding
from xmc_jax.errors import UserError
from xmc_jax.ops import lazy_adam
from xmc_jax.runs.metric_writer import Report
from xmc_jax.runs.run import Run
from xmc_jax.training.saver import Saves
from xmc_jax.types import Array, Batch, PyTree, RowUpdate, TrainState


def first_state(run: Run, optimiser: optax.GradientTransformation, params: PyTree, aux: PyTree) -> TrainState:
  """The state at step 0, on the run's devices."""
  dense, tables = _split(params, run.method.tables)
  opt_state = optimiser.init(dense), dict.fromkeys(tables)
  state = TrainState(np.zeros((), np.int32), params, opt_state, aux)
  state = jax.device_put(state, sharding.shard_tree(state, run.method.rules, run.mesh))
  moments = {name: lazy_adam.init(state.params[name]) for name in tables}
  return state._replace(opt_state=(state.opt_state[0], moments))


class TrainStep:
  """The jitted step, compiled once for each batch shape, its compile time kept apart.

  Parameters are trained by `optimiser`, but for the method's tables: of these a step differentiates, reads
  and writes only the batch's rows (`ops.sparse_rows`).

  Args:
    run: the run.
    optimiser: of everything but tables.
    report: told of compilations.
    table_rate: the tables' learning rate by step; not needed where the method has none.

  Attributes:
    num_programs: shapes compiled so far; 1 in a healthy run.
  """

  def __init__(
    self,
    run: Run,
    optimiser: optax.GradientTransformation,
    report: Report,
    table_rate: optax.Schedule | None = None,
  ):
    self._run, self._optimiser, self._table_rate = run, optimiser, table_rate
    self._programs: dict[Any, Any] = {}
    self._report = report

  def _step(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
    method, devices = self._run.method, self._run.mesh if self._run.mesh.size > 1 else None
    key = jax.random.fold_in(jax.random.key(self._run.config.train.seed), state.step)
    dense, tables = _split(state.params, method.tables)
    ids = {name: rows_of(batch, state.aux) for name, rows_of in method.tables.items()}
    taken = {name: lazy_adam.take(table, ids[name], mesh=devices) for name, table in tables.items()}

    def total_loss(dense, taken):
      loss, metrics, aux = method.loss({**dense, **taken}, state.aux, batch, key)
      return loss, (metrics, aux)

    differentiate = jax.value_and_grad(total_loss, argnums=(0, 1), has_aux=True)
    (loss, (metrics, aux)), (gradients, of_rows) = differentiate(dense, taken)
    merged = {name: lazy_adam.merge(ids[name], of_rows[name]) for name in tables}
    norm = optax.tree.norm((gradients, [summed for _, summed in merged.values()]))
    if merged and self._run.config.train.clip_norm:  # the optimiser clips what it sees, which is no table
      scale = jnp.minimum(1.0, self._run.config.train.clip_norm / norm)
      gradients = jax.tree.map(lambda leaf: scale * leaf, gradients)
      merged = {name: (touched, scale * summed) for name, (touched, summed) in merged.items()}
    may_skip, is_whole = self._run.config.train.max_skipped_steps > 0, jnp.isfinite(loss) & jnp.isfinite(norm)
    if may_skip:
      merged = {name: (jnp.where(is_whole, rows, -1), summed) for name, (rows, summed) in merged.items()}
    updates, dense_state = self._optimiser.update(gradients, state.opt_state[0], dense)
    params, moments = optax.apply_updates(dense, updates), {}
    for name, (touched, summed) in merged.items():
      params[name], moments[name] = lazy_adam.adam(
        tables[name],
        state.opt_state[1][name],
        touched,
        summed,
        count=state.step + 1,
        learning_rate=self._table_rate(state.step),
        mesh=devices,
      )
    if may_skip:  # of tables no row was written
      trained, before = ({name: params[name] for name in dense}, dense_state), (dense, state.opt_state[0])
      kept, dense_state = jax.tree.map(lambda new, old: jnp.where(is_whole, new, old), trained, before)
      params |= kept
    aux = _written(aux, state.aux, is_whole if may_skip else None, devices)
    metrics = {"loss": loss, "gradient_norm": norm, **metrics}
    return TrainState(state.step + 1, params, (dense_state, moments), aux), metrics

  @property
  def num_programs(self) -> int:
    return len(self._programs)

  def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
    shapes = tuple(leaf.shape for leaf in jax.tree.leaves(batch))
    if shapes not in self._programs:
      with self._report.stage("compile"):
        layout = jax.tree.map(lambda leaf: leaf.sharding, state)  # what goes in comes out the same way
        program = jax.jit(self._step, donate_argnums=0, out_shardings=(layout, None))
        self._programs[shapes] = program.lower(state, batch).compile()
    return self._programs[shapes](state, batch)


def _written(aux: PyTree, before: PyTree, is_whole: Array | None, devices) -> PyTree:
  """`aux` after a step, with the rows of each RowUpdate; as `before` unless `is_whole` (None: it is)."""

  def after(new, old):
    if not isinstance(new, RowUpdate):
      return new if is_whole is None else jnp.where(is_whole, new, old)
    ids = new.ids if is_whole is None else jnp.where(is_whole, new.ids, -1)
    return lazy_adam.put(old, ids, new.rows, mesh=devices)

  return jax.tree.map(after, aux, before, is_leaf=lambda leaf: isinstance(leaf, RowUpdate))


def _split(params: PyTree, tables: Mapping[str, Any]) -> tuple[PyTree, PyTree]:
  """`(what is trained densely, the method's tables)`."""
  dense = {name: value for name, value in params.items() if name not in tables}
  return dense, {name: params[name] for name in tables}


class Watch:
  """Reads a step's numbers one step late, so that the device never waits; stops on NaN and Inf.

  Args:
    saves: the newest checkpoint is the last good one; its record counts the steps skipped so far.
    folder: where a broken step's row ids are written.
    max_skipped: how many broken steps may be skipped, as TrainStep does, before it stops.

  Attributes:
    last: the numbers of the last step that was not broken.
  """

  def __init__(self, saves: Saves, folder: pathlib.Path, max_skipped: int = 0):
    self._saves, self._folder, self._max_skipped, self._pending = saves, folder, max_skipped, None
    self.last: dict[str, float] = {}

  def add(self, step: int, rows: np.ndarray, metrics: dict[str, Array]) -> None:
    pending, self._pending = self._pending, (step, rows, metrics)
    self._read(pending)

  def flush(self) -> None:
    pending, self._pending = self._pending, None
    self._read(pending)

  def _read(self, pending) -> None:
    if pending is None:
      return
    step, rows, metrics = pending
    found = {name: float(value) for name, value in jax.device_get(metrics).items()}
    broken = [name for name in ("loss", "gradient_norm") if not math.isfinite(found[name])]
    if not broken:
      self.last = found
      return
    what = f"train/{broken[0]} is {found[broken[0]]} at step {step}, {self._named(step, rows)}"
    if self._saves.host["skipped"] < self._max_skipped:
      self._saves.host["skipped"] += 1
      say(f"{what}; skipped, as {self._saves.host['skipped']} of at most {self._max_skipped} steps")
      return
    raise UserError(
      f"{what}; {self._saves.checkpoints.last_good()}; try a lower train.learning_rate, or "
      "table_learning_rate where there are tables, or train.clip_norm=1; or leave some such steps out, by "
      "train.max_skipped_steps"
    )

  def _named(self, step: int, rows: np.ndarray) -> str:
    """The batch's training rows: a few in words, all of them in a file."""
    if len(rows) <= 10:
      return f"training rows {', '.join(map(str, rows.tolist()))}"
    path = self._folder / f"rows_of_step_{step}.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{row}\n" for row in rows.tolist()))
    return f"training rows {', '.join(map(str, rows[:10].tolist()))}, ... (all {len(rows)} in {path})"
