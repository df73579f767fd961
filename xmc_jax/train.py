"""The one loop: batches, steps, evaluations, checkpoints."""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xmc_jax import config as configs
from xmc_jax import evaluate, mesh, models, optim, runtime
from xmc_jax.checkpoint import Checkpoints
from xmc_jax.contract import PyTree, TrainState
from xmc_jax.data.batches import ahead
from xmc_jax.report import Progress, Report, say
from xmc_jax.run import Run
from xmc_jax.train_step import TrainStep, Watch

# The host's part of a checkpoint, at step 0.
_NEW_RECORD = {"best": None, "best_step": None, "evals_since_best": 0, "stopped": False, "seconds": {}}


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
    best.drop_after(first)
    if host["best_step"] == first and best.latest() != first:  # killed between the two saves
      _keep_best(best, state, host)
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
    return state, {}, dict(_NEW_RECORD)
  state, fresh, host = checkpoints.restore(step, state)
  return state, fresh, {**_NEW_RECORD, **host}


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
  progress = contextlib.closing(Progress("train", total_steps, first=first))
  watch = Watch(checkpoints, run.workdir / "report")
  static = _static_labels(run)
  trained, examples = report.seconds["train"], 0
  with contextlib.closing(ahead(run.batches.build, first, total_steps)) as batches, progress as bar:
    for step in range(first + 1, total_steps + 1):
      last = step == total_steps
      epoch_ends = step % per_epoch == 0 or last
      evaluates = len(run.validation) > 0 and (last or bool(eval_steps and step % eval_steps == 0))
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
      improved = evaluates and _validate(run, report, state, step, host)
      with report.stage("save"):
        # The best parameters are always those of a checkpoint, which comes first: a kill between the two, or
        # a run that goes on from further back, never leaves a best that the run's own record does not know.
        if saves or host["stopped"] or (improved and save_steps):
          checkpoints.save(step, state, fresh, {**host, "seconds": dict(report.seconds)})
        if improved:
          _keep_best(best, state, host)
      if host["stopped"]:
        say(f"train: {config.eval.metric} has not risen for {host['evals_since_best']} evaluations; stopping")
        break


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


def _validate(run: Run, report: Report, state: TrainState, step: int, host: dict[str, Any]) -> bool:
  """Scores the validation rows and updates the host's record; whether they were never better."""
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
    host.update(best=scores[name], best_step=step, evals_since_best=0)
  else:
    host["evals_since_best"] += 1
    patience = run.config.train.early_stop_evals
    host["stopped"] = bool(patience) and host["evals_since_best"] >= patience
  return improved


def _keep_best(best: Checkpoints, state: TrainState, host: dict[str, Any]) -> None:
  best.save(host["best_step"], {"params": state.params, "aux": state.aux}, {}, {"best": host["best"]})


def _note(step: int, per_epoch: int, numbers: dict[str, float], best: float | None, metric: str) -> str:
  parts = [f"epoch {1 + (step - 1) // per_epoch}"]
  if numbers:
    parts.append(f"loss {numbers['loss']:.4f}")
  if best is not None:
    parts.append(f"best {metric} {100 * best:.2f}")
  return ", ".join(parts)
