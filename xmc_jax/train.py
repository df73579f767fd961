"""The one loop: batches, steps, evaluations, checkpoints."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from xmc_jax import config as configs
from xmc_jax import evaluate, mesh, models, optim, runtime
from xmc_jax.checkpoint import Checkpoints
from xmc_jax.contract import Array, Batch, PyTree, TrainState, UserError
from xmc_jax.data.batches import ahead
from xmc_jax.report import Progress, Report, say
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
  """Reads a step's numbers one step late, so that the device never waits; stops on NaN and Inf."""

  def __init__(self, checkpoints: Checkpoints):
    self._checkpoints, self._pending = checkpoints, None
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
      named = ", ".join(map(str, rows[:10].tolist())) + (
        f", ... ({len(rows)} in all)" if len(rows) > 10 else ""
      )
      saved = self._checkpoints.latest()
      good = (
        f"the last good checkpoint is step {saved}" if saved is not None else "no checkpoint was saved yet"
      )
      raise UserError(
        f"train/{broken[0]} is {self.last[broken[0]]} at step {step}, training rows {named}; {good}; "
        "try a lower train.learning_rate, or train.clip_norm=1"
      )


def train(run: Run, report: Report) -> tuple[PyTree, PyTree, int]:
  """Trains a run to its end, from where its folder stands.

  Returns:
    `(params, aux, step)`: the best on validation rows, or the last where none are held out.

  Raises:
    UserError: the loss is not finite, or the folder cannot be written.
  """
  total_steps = run.config.train.num_epochs * run.batches.steps_per_epoch
  optimiser = optim.make(run.config.train, total_steps, frozen=models.frozen_paths(run.config.encoder))
  checkpoints, best = run.checkpoints(), run.best()
  with report.stage("restore"):
    state, fresh, host = _start(run, optimiser, checkpoints)
  first = int(state.step)
  report.resume(first, host["seconds"])
  if first:
    say(f"train: going on from step {first:,} of {total_steps:,}")
  if first < total_steps and not host["stopped"]:
    _loop(run, report, TrainStep(run, optimiser, report), state, fresh, host, total_steps, checkpoints, best)
  checkpoints.close()
  best.close()
  return run.trained()


def _start(run: Run, optimiser, checkpoints: Checkpoints) -> tuple[TrainState, PyTree, dict[str, Any]]:
  """The newest checkpoint, or step 0."""
  step = checkpoints.latest()
  # A run that goes on needs shapes alone, and no longer what config.init_from names.
  params, aux = run.initial_parameters() if step is None else run.method.init(jax.random.key(0))
  state = TrainState(np.zeros((), np.int32), params, optimiser.init(params), aux)
  state = jax.device_put(state, mesh.shard_tree(state, run.method.rules, run.mesh))
  if step is None:
    return state, {}, {"best": None, "evals_since_best": 0, "stopped": False, "seconds": {}}
  return checkpoints.restore(step, state)


def _loop(
  run: Run,
  report: Report,
  train_step: TrainStep,
  state: TrainState,
  fresh: PyTree,
  host: dict[str, Any],
  total_steps: int,
  checkpoints: Checkpoints,
  best: Checkpoints,
) -> None:
  config, per_epoch = run.config, run.batches.steps_per_epoch
  eval_steps = configs.steps(config.eval.every_epochs, per_epoch)
  save_steps = configs.steps(config.checkpoint.every_epochs, per_epoch)
  first = int(state.step)
  bar = Progress("train", total_steps, first=first)
  watch = Watch(checkpoints)
  static = _static_labels(run)
  batches = ahead(run.batches.build, first, total_steps)
  trained, examples = report.seconds["train"], 0
  for step in range(first + 1, total_steps + 1):
    last = step == total_steps
    epoch_ends = step % per_epoch == 0 or last
    evaluates = bool(run.num_validation) and (last or bool(eval_steps and step % eval_steps == 0))
    saves = last or bool(save_steps and step % save_steps == 0)
    with report.stage("train", less="compile"):
      batch = next(batches)
      on_device = mesh.put_batch(batch, run.mesh)._replace(**static)
      state, metrics = train_step(state, fresh, on_device)
      rows = run.train.row_numbers[batch.rows[batch.rows >= 0]]
      watch.add(step, rows, metrics)
      if epoch_ends or evaluates or saves:
        watch.flush()
    examples += len(rows)
    bar.update(step, _note(step, per_epoch, watch.last, host["best"], config.eval.metric))
    if epoch_ends:
      rate = examples / (report.seconds["train"] - trained)
      report.scalars(step, _readings(watch.last, rate, report))
    if evaluates:
      _validate(run, report, state, step, host, best)
    if saves or host["stopped"]:
      with report.stage("save"):
        checkpoints.save(step, state, fresh, {**host, "seconds": dict(report.seconds)})
    if host["stopped"]:
      say(f"train: {config.eval.metric} has not risen for {host['evals_since_best']} evaluations; stopping")
      break
  batches.close()
  bar.close()


def _readings(numbers: dict[str, float], rate: float, report: Report) -> dict[str, float]:
  """What an epoch's line of metrics.jsonl holds."""
  return {
    **{f"train/{name}": value for name, value in numbers.items()},
    "train/examples_per_second": rate,
    **{f"time/{stage}": seconds for stage, seconds in report.seconds.items()},
    **{f"memory/{where}_bytes": peak for where, peak in runtime.peak_memory().items()},
  }


def _static_labels(run: Run) -> dict[str, Any]:
  """Where all labels join, their texts are put on the device once, not with every batch."""
  if run.method.batch.labels != "all":
    return {}
  everywhere = mesh.replicated(run.mesh)
  return {
    "columns": jax.device_put(run.batches.label_columns, everywhere),
    "labels": jax.device_put(run.batches.label_groups, everywhere),
  }


def _validate(
  run: Run, report: Report, state: TrainState, step: int, host: dict[str, Any], best: Checkpoints
) -> None:
  """Scores the validation rows; keeps the parameters if they are the best so far."""
  with report.stage("evaluate"):
    labels = jnp.asarray(run.embed_labels(state.params, state.aux))
    ranking = evaluate.rank_split(run, state.params, state.aux, run.validation, labels)
    scores = evaluate.score(run, run.validation, ranking)
  report.scalars(step, {f"eval/{name}": value for name, value in scores.items()})
  name = run.config.eval.metric
  improved = host["best"] is None or scores[name] > host["best"]
  say(
    f"validation at step {step:,}: "
    + "  ".join(
      f"{key} {100 * scores[key]:.2f}" for key in ("P@1", "P@5", "PSP@1", "R@10", "R@100") if key in scores
    )
    + ("  (best so far)" if improved else "")
  )
  if improved:
    host.update(best=scores[name], evals_since_best=0)
    with report.stage("save"):
      best.save(step, {"params": state.params, "aux": state.aux}, {}, {name: scores[name]})
  else:
    host["evals_since_best"] += 1
    patience = run.config.train.early_stop_evals
    host["stopped"] = bool(patience) and host["evals_since_best"] >= patience


def _note(step: int, per_epoch: int, numbers: dict[str, float], best: float | None, metric: str) -> str:
  parts = [f"epoch {1 + (step - 1) // per_epoch}"]
  if numbers:
    parts.append(f"loss {numbers['loss']:.4f}")
  if best is not None:
    parts.append(f"best {metric} {100 * best:.2f}")
  return ", ".join(parts)
