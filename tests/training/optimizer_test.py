"""What decays, at which rate, and how far a step may go."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny_runs

from xmc_jax import models
from xmc_jax.distributed.sharding import by_path
from xmc_jax.training import optimizer


def _settings(**changed):
  settings = {"learning_rate": 0.5, "warmup_fraction": 0.0, "schedule": "linear", "weight_decay": 0.01}
  settings |= {"clip_norm": 0.0, "table_learning_rate": 0.5, "head_learning_rate": 0.0, "warmup_steps": 0}
  return types.SimpleNamespace(**settings | changed)


def _decayed(params):
  return by_path(optimizer.decay_mask(params))


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_biases_and_layer_norm_gains_do_not_decay(kind, tmp_path):
  folder = tiny_runs.tiny_bert(tmp_path, kind)
  config = types.SimpleNamespace(name=str(folder), projection_dim=8, dtype="float32")
  decayed = _decayed(models.build(config).init(jax.random.key(0)))
  free = {name for name, decays in decayed.items() if not decays}
  norms = {"embeddings/layer_norm", "layer_0/attention_layer_norm", "layer_0/output_layer_norm"}
  dense = {f"layer_0/attention/{name}" for name in ("query", "key", "value", "output")}
  dense |= {"layer_0/intermediate", "layer_0/output"}
  expected = {f"encoder/{name}/{leaf}" for name in norms for leaf in ("bias", "scale")}
  expected |= {f"encoder/{name}/bias" for name in dense} | {"projection/bias"}
  assert free == expected
  tables = {"word", "position"} | ({"type"} if kind == "bert" else set())
  kernels = {f"encoder/{name}/kernel" for name in dense} | {"projection/kernel"}
  assert set(decayed) - free == kernels | {f"encoder/embeddings/{name}" for name in tables}


def test_a_bag_decays_and_names_of_other_houses_are_known():
  assert _decayed({"encoder": {"word": np.zeros(3)}}) == {"encoder/word": True}
  for name in ("sa_layer_norm", "LayerNorm", "layernorm", "output_layer_norm"):
    assert not any(_decayed({name: {"weight": np.zeros(3), "bias": np.zeros(3)}}).values())
  assert _decayed({"bias_of_mind": np.zeros(3)}) == {"bias_of_mind": True}


def test_decay_reaches_the_masked_in_leaves_alone():
  params = {"kernel": jnp.ones(2), "bias": jnp.ones(2)}
  optimiser = optimizer.adamw(_settings(weight_decay=0.1), 10)
  updates, _ = optimiser.update(jax.tree.map(jnp.zeros_like, params), optimiser.init(params), params)
  np.testing.assert_allclose(updates["kernel"], -0.5 * 0.1, rtol=1e-6)
  np.testing.assert_array_equal(updates["bias"], 0)


def test_a_table_has_its_own_rate_and_does_not_decay():
  params = {"encoder": {"kernel": jnp.ones(2)}, "table": jnp.ones(2)}
  optimiser = optimizer.adamw(_settings(table_learning_rate=2.0, weight_decay=0.1), 10)
  state = optimiser.init(params)
  updates, state = optimiser.update(jax.tree.map(jnp.zeros_like, params), state, params)
  np.testing.assert_array_equal(updates["table"], 0)
  updates, _ = optimiser.update(jax.tree.map(jnp.ones_like, params), optimiser.init(params), params)
  np.testing.assert_allclose(updates["table"], -2.0, rtol=1e-4)
  np.testing.assert_allclose(updates["encoder"]["kernel"], -0.5 * 1.1, rtol=1e-4)


def test_heads_may_have_their_own_rate():
  params = {
    "encoder": {"kernel": jnp.ones(2)},
    "projection": {"kernel": jnp.ones(2)},
    "prototype": {"layer": {"kernel": jnp.ones(2)}},
    "text_head": {"projection": {"kernel": jnp.ones(2), "bias": jnp.ones(2)}},
  }
  for rate, expected in ((0.0, 0.5), (2.0, 2.0)):
    optimiser = optimizer.adamw(_settings(head_learning_rate=rate, weight_decay=0.1), 10)
    updates, _ = optimiser.update(jax.tree.map(jnp.ones_like, params), optimiser.init(params), params)
    np.testing.assert_allclose(updates["encoder"]["kernel"], -0.5 * 1.1, rtol=1e-4)
    np.testing.assert_allclose(updates["projection"]["kernel"], -expected * 1.1, rtol=1e-4)
    np.testing.assert_allclose(updates["text_head"]["projection"]["kernel"], -expected * 1.1, rtol=1e-4)
    np.testing.assert_allclose(updates["prototype"]["layer"]["kernel"], -expected * 1.1, rtol=1e-4)
    np.testing.assert_allclose(updates["text_head"]["projection"]["bias"], -expected, rtol=1e-4)


def _values(steps, **changed):
  schedule = optimizer.schedule(_settings(**changed), steps)
  return [float(schedule(step)) for step in range(steps + 1)]


@pytest.mark.parametrize(
  "schedule, warmup, expected",
  [
    ("linear", 0.0, [0.5, 0.4, 0.3, 0.2, 0.1, 0.0]),
    # 4 of 10 steps: 1/5, 2/5, 3/5, 4/5 of the peak, then down to 0 in 6.
    ("linear", 0.4, [0.1, 0.2, 0.3, 0.4, *(0.5 * left / 6 for left in (6, 5, 4, 3, 2, 1, 0))]),
    ("cosine", 0.2, [0.25, 0.5, *(0.25 * (1 + np.cos(np.pi * part / 4)) for part in (1, 2, 3, 4))]),
  ],
)
def test_schedules(schedule, warmup, expected):
  found = _values(len(expected) - 1, schedule=schedule, warmup_fraction=warmup)
  np.testing.assert_allclose(found, expected, atol=1e-7)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("warmup", [0.0, 0.5, 0.99])
def test_one_step_moves(schedule, warmup):
  assert _values(1, schedule=schedule, warmup_fraction=warmup)[0] > 0


@pytest.mark.parametrize("clip_norm, expected", [(5.0, [3.0, 4.0]), (0.0, [30.0, 40.0])])
def test_clipping_bounds_the_gradient_that_adam_sees(clip_norm, expected):
  gradients = {"a": jnp.array([30.0, 40.0])}
  state = optimizer.adamw(_settings(clip_norm=clip_norm), 10)
  _, after = state.update(gradients, state.init(gradients), gradients)
  seen = next(leaf for leaf in jax.tree.leaves(after) if leaf.shape == (2,)) / 0.1  # Adam's mean, b1 = 0.9
  np.testing.assert_allclose(seen, expected, rtol=1e-5)


def test_frozen_parameters_stay_as_they_are_decay_included():
  params = {
    "encoder": {
      "embeddings": {"word": jnp.ones((3, 2))},
      "layer_0": {"output": {"kernel": jnp.ones((2, 2))}},
      "layer_1": {"output": {"kernel": jnp.ones((2, 2))}},
      "layer_10": {"output": {"kernel": jnp.ones((2, 2))}},
    }
  }
  frozen = models.frozen_paths(types.SimpleNamespace(num_frozen_layers=1))
  optimiser = optimizer.adamw(_settings(weight_decay=0.1), 10, frozen=frozen)
  state, new = optimiser.init(params), params
  for _ in range(3):
    updates, state = optimiser.update(jax.tree.map(jnp.zeros_like, new), state, new)
    new = optax.apply_updates(new, updates)
  still = jax.tree.map(lambda a, b: bool((a == b).all()), params, new)["encoder"]
  assert still["embeddings"]["word"] and still["layer_0"]["output"]["kernel"]
  assert not still["layer_1"]["output"]["kernel"] and not still["layer_10"]["output"]["kernel"]
  assert models.frozen_paths(types.SimpleNamespace(num_frozen_layers=0)) == ()


def test_warmup_in_steps_takes_the_place_of_its_share():
  rate = optimizer.schedule(_settings(warmup_steps=4, warmup_fraction=0.5), 20)
  other = optimizer.schedule(_settings(warmup_fraction=0.2), 20)
  assert [float(rate(step)) for step in range(21)] == [float(other(step)) for step in range(21)]
  short = optimizer.schedule(_settings(warmup_steps=500), 3)
  assert 0 < float(short(2)) <= 0.5


def test_tables_follow_the_schedule_to_their_own_peak():
  settings = _settings(table_learning_rate=2.0, warmup_fraction=0.25, schedule="cosine")
  rate, table_rate = optimizer.schedule(settings, 40), optimizer.table_schedule(settings, 40)
  for step in (0, 5, 10, 25, 39):
    assert float(table_rate(step)) == pytest.approx(4 * float(rate(step)))
