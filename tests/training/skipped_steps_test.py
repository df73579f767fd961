"""Steps whose loss or gradient is not finite: left out bit by bit, and no more of them than allowed."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny_runs
from same_runs import assert_same_runs

from xmc_jax import methods
from xmc_jax.cli import commands
from xmc_jax.distributed import sharding
from xmc_jax.errors import UserError
from xmc_jax.methods.components import centroid_updates
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.storage import checksums
from xmc_jax.training import loop
from xmc_jax.training.optimizer import Optimizer
from xmc_jax.training.step import TrainStep
from xmc_jax.types import BatchSpec, Method

OVA = {"method.name": "ova", "method.loss": "binary", "method.labels": "table"}
SETTINGS = {"dexml": {}, "ova": OVA, "prime": {**tiny_runs.PRIME, "method.clusters_first_epoch": 9.0}}


@pytest.fixture
def poisoned(monkeypatch):
  """Every method's loss has a poison added, which comes in a field of the batch that none of them reads."""
  make = methods.make

  def with_poison(config, info):
    made = make(config, info)

    def loss(params, extra_state, batch, key):
      poison = batch.shared
      value, metrics, extra_state = made.loss(params, extra_state, batch._replace(shared=()), key)
      return value + poison, metrics, jax.tree.map(lambda leaf: leaf + poison.astype(leaf.dtype), extra_state)

    return made._replace(loss=loss)

  monkeypatch.setattr(methods, "make", with_poison)


@pytest.mark.slow
@pytest.mark.parametrize("method", SETTINGS)
def test_a_broken_step_leaves_all_as_it_was(method, data, tmp_path, poisoned):
  """Parameters, tables, the moments of both, and what a method keeps beside them; the step counts."""
  run = tiny_runs.open_run(data, tmp_path / "run", **SETTINGS[method], **{"train.max_skipped_steps": 1})
  step = tiny_runs.train_step(run)
  state = step.first_state(*run.initial_parameters())
  batch = tiny_runs.placed_batch(run, 0)
  state, _ = step(state, batch._replace(shared=jnp.float32(0.0)))
  before = jax.device_get(state)
  state, found = step(state, batch._replace(shared=jnp.float32(np.nan)))
  after = jax.device_get(state)
  assert not np.isfinite(found["loss"]) and step.num_programs == 1
  assert after.step == before.step + 1
  for left, right in zip(jax.tree.leaves(after._replace(step=0)), jax.tree.leaves(before._replace(step=0))):
    np.testing.assert_array_equal(left, right)
  state, found = step(state, batch._replace(shared=jnp.float32(0.0)))
  assert np.isfinite(found["loss"])
  moved = zip(jax.tree.leaves(jax.device_get(state.params)), jax.tree.leaves(before.params), strict=True)
  assert any((left != right).any() for left, right in moved)


def _centroid_step(folder, max_skipped_steps, num_labels=40_000, width=64):
  """`(step, its first state, batch)` of a training that moves the centroids of a pool of 8 labels."""
  info = types.SimpleNamespace(mesh=sharding.make(1, 1))
  settings = types.SimpleNamespace(centroid_momentum=0.95, num_positives=1)
  train = types.SimpleNamespace(max_skipped_steps=max_skipped_steps, seed=0, clip_norm=0.0)

  def loss(params, extra_state, batch, key):
    queries = params["points"][batch.rows]
    scores = queries @ centroid_updates.lookup(extra_state, batch.columns, info).T
    extra_state = {
      centroid_updates.NAME: centroid_updates.updated(extra_state, queries, batch, settings, info)
    }
    return jnp.sum(jax.nn.softplus(scores)) + batch.shared, {}, extra_state

  rng = np.random.default_rng(0)
  vectors = lambda *shape: rng.standard_normal(shape).astype(np.float32)
  method = Method(None, loss, None, None, BatchSpec(), ((".*", ()),))
  optimiser = Optimizer(optax.adam(0.1), optax.constant_schedule(0.1))
  step = TrainStep(method, info.mesh, train, optimiser, MetricWriter(folder))
  extra_state = {centroid_updates.NAME: vectors(num_labels, width)}
  state = step.first_state({"points": vectors(4, width)}, extra_state)
  labels = rng.choice(num_labels, 8, replace=False)
  batch = tiny_runs.pool_batch(labels, [[0], [3], [3], [6]], [[1.0]] * 4, [[-1]] * 4)
  return step, state, sharding.put_batch(batch, info.mesh)


def test_a_step_that_may_be_skipped_makes_no_copy_of_the_centroids(tmp_path):
  """By the compiled step's temporaries. A broken one leaves the table bit by bit, others write 3 rows."""
  table = 40_000 * 64 * 4
  sizes = {}
  for allowed in (0, 1):
    step, state, batch = _centroid_step(tmp_path, allowed)
    before = np.asarray(state.extra_state["centroids"])
    state, _ = step(state, batch._replace(shared=jnp.float32(0.0)))
    (program,) = step._programs.values()
    sizes[allowed] = program.memory_analysis().temp_size_in_bytes
    after = np.asarray(state.extra_state["centroids"])
    moved = np.flatnonzero(np.any(after != before, axis=1))
    assert set(moved.tolist()) == set(np.asarray(batch.columns)[[0, 3, 6]].tolist())
  assert sizes[1] < sizes[0] + 0.01 * table and sizes[0] < 0.1 * table
  for poison in (np.nan, np.inf):
    state, found = step(state, batch._replace(shared=jnp.float32(poison)))
    assert not np.isfinite(found["loss"])
    np.testing.assert_array_equal(state.extra_state["centroids"], after)


def _poison_steps(patch, *steps, kill_at=0):
  """These steps of a training are broken; one of them may be the process's last."""
  original = loop.TrainStep.__call__

  def call(self, state, batch):
    number = int(state.step) + 1
    if number == kill_at:
      raise KeyboardInterrupt
    return original(self, state, batch._replace(shared=jnp.float32(np.nan if number in steps else 0.0)))

  patch.setattr(loop.TrainStep, "__call__", call)


@pytest.mark.slow
def test_so_many_may_be_skipped_and_a_kill_does_not_forget_them(data, tmp_path, monkeypatch, poisoned, capfd):
  config = tiny_runs.config(data, **{"train.max_skipped_steps": 2, "train.num_epochs": 2})
  with monkeypatch.context() as patch:
    _poison_steps(patch, 3, 12)
    expected = commands.train_and_test(config, tmp_path / "undisturbed")
  said = [line for line in capfd.readouterr().err.splitlines() if "skipped" in line]
  assert [line.partition(",")[0] for line in said] == [f"train/loss is nan at step {n}" for n in (3, 12)]
  assert said[1].endswith("; skipped (2 of at most 2 steps)")
  lines = (tmp_path / "undisturbed" / "metrics.jsonl").read_text()
  assert "NaN" not in lines and len(lines.splitlines()) == 4  # the epoch's reading is of the step before
  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    _poison_steps(patch, 3, 12, kill_at=8)
    commands.train_and_test(config, tmp_path / "killed")
  with monkeypatch.context() as patch:
    _poison_steps(patch, 3, 12)
    assert commands.train_and_test(config, tmp_path / "killed") == expected
  assert_same_runs(tmp_path / "undisturbed", tmp_path / "killed")
  record = checksums.read_record(tmp_path / "killed" / "checkpoints" / "12")
  assert record["skipped"] == 2


@pytest.mark.slow
def test_one_more_than_allowed_stops(data, tmp_path, monkeypatch, poisoned):
  config = tiny_runs.config(data, **{"train.max_skipped_steps": 1})
  with monkeypatch.context() as patch, pytest.raises(UserError) as caught:
    _poison_steps(patch, 3, 9)
    commands.train_and_test(config, tmp_path / "run")
  assert "train/loss is nan at step 9" in str(caught.value)
  assert "the last good checkpoint is step 6" in str(caught.value)
