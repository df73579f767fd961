"""One step of training, compiled, and a watch over the numbers that it gives."""

import math
import pathlib
from typing import Any

import jax
import numpy as np
import optax

from xmc_jax.checkpoint import Checkpoints
from xmc_jax.contract import Array, Batch, PyTree, TrainState, UserError
from xmc_jax.report import Report
from xmc_jax.run import Run


class TrainStep:
  """The jitted step, compiled once for each batch shape, its compile time kept apart.

  Attributes:
    num_programs: shapes compiled so far; 1 in a healthy run.
  """

  def __init__(self, run: Run, optimiser: optax.GradientTransformation, report: Report):
    seed = run.config.train.seed

    def step(state: TrainState, fresh: PyTree, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
      key = jax.random.fold_in(jax.random.key(seed), state.step)

      def total_loss(params):
        loss, metrics, aux = run.method.loss(params, state.aux, fresh, batch, key)
        return loss, (metrics, aux)

      (loss, (metrics, aux)), gradients = jax.value_and_grad(total_loss, has_aux=True)(state.params)
      updates, opt_state = optimiser.update(gradients, state.opt_state, state.params)
      params = optax.apply_updates(state.params, updates)
      metrics = {"loss": loss, "gradient_norm": optax.tree.norm(gradients), **metrics}
      return TrainState(state.step + 1, params, opt_state, aux), metrics

    self._step = step
    self._programs: dict[Any, Any] = {}
    self._report = report

  @property
  def num_programs(self) -> int:
    return len(self._programs)

  def __call__(self, state: TrainState, fresh: PyTree, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
    shapes = tuple(leaf.shape for leaf in jax.tree.leaves(batch))
    if shapes not in self._programs:
      with self._report.stage("compile"):
        layout = jax.tree.map(lambda leaf: leaf.sharding, state)  # what goes in comes out the same way
        program = jax.jit(self._step, donate_argnums=0, out_shardings=(layout, None))
        self._programs[shapes] = program.lower(state, fresh, batch).compile()
    return self._programs[shapes](state, fresh, batch)


class Watch:
  """Reads a step's numbers one step late, so that the device never waits; stops on NaN and Inf.

  Args:
    checkpoints: the newest of these is the last good one.
    folder: where a broken step's row ids are written.
  """

  def __init__(self, checkpoints: Checkpoints, folder: pathlib.Path):
    self._checkpoints, self._folder, self._pending = checkpoints, folder, None
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
    self.last = {name: float(value) for name, value in jax.device_get(metrics).items()}
    broken = [name for name in ("loss", "gradient_norm") if not math.isfinite(self.last[name])]
    if broken:
      saved = self._checkpoints.latest()
      good = (
        f"the last good checkpoint is step {saved}" if saved is not None else "no checkpoint was saved yet"
      )
      raise UserError(
        f"train/{broken[0]} is {self.last[broken[0]]} at step {step}, {self._named(step, rows)}; {good}; "
        "try a lower train.learning_rate, or train.clip_norm=1"
      )

  def _named(self, step: int, rows: np.ndarray) -> str:
    """The batch's training rows: a few in words, all of them in a file."""
    if len(rows) <= 10:
      return f"training rows {', '.join(map(str, rows.tolist()))}"
    path = self._folder / f"rows_of_step_{step}.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{row}\n" for row in rows.tolist()))
    return f"training rows {', '.join(map(str, rows[:10].tolist()))}, ... (all {len(rows)} in {path})"
