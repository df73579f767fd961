"""Runs a training: batches, steps, refreshes, evaluations, checkpoints."""

import contextlib
from typing import Any

import jax
import numpy as np

from xmc_jax import config as configs
from xmc_jax import refresh
from xmc_jax.batching.builder import BatchBuilder, prefetch
from xmc_jax.console import Progress, say
from xmc_jax.distributed import runtime, sharding
from xmc_jax.distributed.preemption import Stop, StopRequested
from xmc_jax.errors import ConfigError
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.runs.run import Run
from xmc_jax.runs.trained import Trained
from xmc_jax.storage import run_folder
from xmc_jax.storage.checkpoints import Checkpoints
from xmc_jax.training import optimizer, readings
from xmc_jax.training.limits import NonFiniteGuard, TimeLimit
from xmc_jax.training.step import TrainStep
from xmc_jax.types import EXTRA_STATE, Batch, TrainState


def train(run: Run, writer: MetricWriter, stop: Stop | None = None, last_step: int | None = None) -> None:
  """Trains a run to its end, from its newest checkpoint if there is one; `run.trained` has the result.

  Args:
    run: the run.
    writer: writes its metrics and stage times.
    stop: asked after every step whether to save and exit; None trains to the end.
    last_step: the last step to train; the schedule is still that of all steps. None trains all steps.

  Raises:
    UserError: the loss is not finite, or the folder cannot be written.
    SystemExit, KeyboardInterrupt: a stop was requested; all is saved.
  """
  stop = stop or Stop(0.0)
  all_steps = run.config.train.num_epochs * run.batches.steps_per_epoch
  last_step = min(last_step or all_steps, all_steps)
  optimiser = optimizer.make(run.config, all_steps)
  step = TrainStep(run.method, run.mesh, run.config.train, optimiser, writer)
  checkpoints = Checkpoints(
    run.workdir, run.config.checkpoint.keep, _saves_in_background(run.config.checkpoint.in_background)
  )
  with writer.stage("restore"):
    newest = checkpoints.latest_valid()
    initial = run.initial_parameters(from_other_run=newest is None)
    state, refreshed = checkpoints.restore(newest, step.first_state(*initial))
    del initial  # where the mesh has several devices, the state has copies
  first, record = int(state.step), checkpoints.record
  writer.resume(first, record.seconds, record.unscored)
  if first:
    say(f"train: going on from step {first:,} of {last_step:,}")
  if newest is not None and not record.unscored and (first >= last_step or record.stopped):
    return
  loop = _Loop(run, writer, stop, step, state, refreshed, checkpoints)
  try:
    with stop.saving(), checkpoints.finished():
      loop.run(first, last_step)
    stop.check()
  except StopRequested:
    say(f"stopped at step {checkpoints.latest() or 0:,} of {last_step:,}{stop.remedy}")
    stop.leave()


def _saves_in_background(wanted: str) -> bool:
  """Returns whether to write checkpoints while the training goes on: where steps leave the host idle.

  Raises:
    ConfigError: that is set, and there are several processes.
  """
  if wanted == "always" and not runtime.is_alone():
    raise ConfigError(
      "checkpoint.in_background = 'always' works with a single process only; several save together: "
      "set --config.checkpoint.in_background=auto"
    )
  return wanted == "always" or (wanted == "auto" and runtime.is_alone() and runtime.device()[0] != "cpu")


class _Loop:
  """Runs steps, and what happens between them: refreshes, evaluations, checkpoints."""

  def __init__(
    self,
    run: Run,
    writer: MetricWriter,
    stop: Stop,
    train_step: TrainStep,
    state: TrainState,
    refreshed: dict[str, np.ndarray],
    checkpoints: Checkpoints,
  ):
    self._run, self._writer, self._stop, self._train_step = run, writer, stop, train_step
    self._state, self._refreshed = state, refreshed
    self._checkpoints, self._record = checkpoints, checkpoints.record
    self._guard = NonFiniteGuard(checkpoints, run.workdir / "report", run.config.train.max_skipped_steps)
    self._static = static_labels(run.batches, run.mesh)
    self._num_examples, self._seconds_before = 0, writer.seconds["train"]  # for the rate of this process
    self._time = TimeLimit(run.config.train.minutes, writer)

  def run(self, first: int, total_steps: int) -> None:
    """Trains from step `first` to the last, or to a stop; without a step, saves the first parameters."""
    refreshes, per_epoch = self._run.method.refreshes, self._run.batches.steps_per_epoch
    progress = contextlib.closing(Progress("train", total_steps, first=first))
    with progress as bar, self._run.embedder.watched(self._stop.check):
      self._begin(first)
      if self._record.unscored:
        self._evaluate_and_save(first, evaluates=True, saves=True)
      elif not total_steps:
        of_labels = {name: made for name, made in refreshes.items() if made.target == EXTRA_STATE}
        self._refresh(refresh.due(of_labels, 0, per_epoch), 0)
        self._evaluate_and_save(0, evaluates=len(self._run.data.validation) > 0, saves=True)
      while first < total_steps and not self._record.stopped:
        if names := refresh.due(refreshes, first, per_epoch):
          self._refresh(names, first)
        last = refresh.next_due(refreshes, first, total_steps, per_epoch)
        self._steps(first, last, total_steps, bar)
        first = last
    # Those of another process that predicted meanwhile.
    run_folder.forget(self._run.workdir, *run_folder.RANKING_FILES)

  def _begin(self, first: int) -> None:
    """Checks the disk, deletes files of other parameters, embeds the points if the encoder is frozen."""
    self._checkpoints.check_room(self._state)
    # Ranking files and vectors that a killed run left, or that belong to steps after this one.
    others = *run_folder.RANKING_FILES, *([] if first else [run_folder.VECTORS])
    run_folder.forget(self._run.workdir, *others)
    with self._writer.stage("freeze"):
      self._trained(first).freeze_queries()

  def _trained(self, step: int) -> Trained:
    return Trained(self._run, self._state.params, self._state.extra_state, step)

  def _refresh(self, names: list[str], step: int) -> None:
    """Runs refreshes; at a stop request, drops their results and saves the state before them."""
    before = self._state, self._refreshed
    try:
      self._run_refreshes(names, step)
    except StopRequested:
      self._state, self._refreshed = before
      if step:
        self._save()
      raise

  def _run_refreshes(self, names: list[str], step: int) -> None:
    snapshot = None
    for name in names:
      say(f"refresh: {name} at step {step:,}")
      definition = self._run.method.refreshes[name]
      with self._writer.stage(f"refresh_{name}"):
        snapshot = snapshot or self._trained(step).snapshot()
        self._refreshed, extra_state = refresh.renew(
          name, definition, snapshot, self._refreshed, self._state.extra_state
        )
      if shares := refresh.shares(name, self._refreshed):
        self._writer.scalars(step + 1, shares)  # the first step that it acts on
      if definition.target == EXTRA_STATE:  # embeddings may depend on it
        self._state, snapshot = self._state._replace(extra_state=extra_state), None

  def _steps(self, first: int, last: int, total_steps: int, bar: Progress) -> None:
    """Runs the steps between two refreshes."""
    config, per_epoch = self._run.config, self._run.batches.steps_per_epoch
    build = lambda step, refreshed=self._refreshed: self._run.batches.build(step, refreshed)
    with contextlib.closing(prefetch(build, first, last)) as batches:
      for step in range(first + 1, last + 1):
        if not self._train_step.num_programs:
          bar.wait("compiling, which can take minutes")
        self._step(step, next(batches), flush=step == last or step % per_epoch == 0)
        status = readings.status(step, per_epoch, self._guard.last, self._record.best, config.eval.metric)
        bar.update(step, status)
        self._after(step, ends=step == total_steps)
        if self._stop.requested(step):
          self._save()
          raise StopRequested
        if self._record.stopped:
          return

  def _step(self, step: int, batch: Batch, flush: bool) -> None:
    with self._writer.stage("train", less="compile"):
      placed = sharding.put_batch(batch, self._run.mesh)._replace(**self._static)
      self._state, metrics = self._train_step(self._state, placed)
      rows = self._run.data.train.row_numbers[batch.rows[batch.rows >= 0]]
      self._guard.add(step, rows, metrics)
      if flush:
        self._guard.flush()
    self._num_examples += len(rows)

  def _after(self, step: int, ends: bool) -> None:
    """Does what is due after a step: an epoch's metrics, the validation, the checkpoint."""
    config, per_epoch = self._run.config, self._run.batches.steps_per_epoch
    if step % per_epoch == 0 and not ends and self._time.end_epoch():
      self._record.stopped = True
      ends = True
    eval_steps = configs.steps(config.eval.every_epochs, per_epoch)
    save_steps = configs.steps(config.checkpoint.every_epochs, per_epoch)
    evaluates = len(self._run.data.validation) > 0 and (ends or bool(eval_steps and step % eval_steps == 0))
    saves = ends or bool(save_steps and step % save_steps == 0)
    if evaluates or saves:
      with self._writer.stage("train"):
        self._guard.flush()
    if ends or step % per_epoch == 0:
      rate = self._num_examples / (self._writer.seconds["train"] - self._seconds_before)
      self._writer.scalars(step, readings.epoch_metrics(self._guard.last, rate, self._writer))
    self._evaluate_and_save(step, evaluates, saves)

  def _evaluate_and_save(self, step: int, evaluates: bool, saves: bool) -> None:
    """Validates, then saves the checkpoint that records it, then saves the best parameters."""
    improved = False
    if evaluates:
      try:
        improved = readings.validate(self._trained(step), self._writer, self._record)
      except StopRequested:
        self._record.unscored = True
        self._save()
        raise
    if saves or self._record.stopped or (improved and self._run.config.checkpoint.every_epochs):
      self._save()
    if improved:
      with self._writer.stage("save"):
        self._checkpoints.keep_best(self._state)

  def _save(self) -> None:
    with self._writer.stage("train"):
      self._guard.flush()
    with self._writer.stage("save"):
      self._checkpoints.save(self._state, self._refreshed, self._writer.seconds)


def static_labels(batches: BatchBuilder, mesh: jax.sharding.Mesh) -> dict[str, Any]:
  """Puts on the devices, once, what all batches share: the texts of all labels."""
  static: dict[str, Any] = {}
  if len(batches.label_columns):
    static["columns"] = sharding.place(batches.label_columns, sharding.replicated(mesh))
    static["labels"] = sharding.split_tree(batches.label_groups, mesh, *sharding.LABEL_ROWS)
  if batches.every_label:
    static["every_label"] = sharding.split_tree(batches.every_label, mesh, *sharding.LABEL_ROWS)
  return static
