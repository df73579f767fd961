"""Fresh negatives from the embedding cache, against NumPy and against the loss over all labels."""

import functools
from dataclasses import replace

import jax
import numpy as np
import pytest
import tiny_runs

from xmc_jax.distributed import sharding
from xmc_jax.methods.components import cached_negatives

FRESH = {
  "method.labels": "in_batch",
  "method.num_fresh_negatives": 6,
  "encoder.embedding_dropout": 0.0,
  "train.batch_size": 16,
}


@pytest.fixture
def make_run(data, tmp_path):
  def make(**overrides):
    return tiny_runs.open_run(data, tmp_path / f"run{len(list(tmp_path.iterdir()))}", **FRESH | overrides)

  return make


def _start(run):
  params, extra_state = run.initial_parameters()
  extra_state = jax.device_put(
    extra_state, sharding.shard_tree(extra_state, run.method.sharding_rules, run.mesh)
  )
  return params, tiny_runs.renewed(run, params, extra_state)[1]


def _loss(run, params, extra_state, batch):
  return float(jax.jit(functools.partial(tiny_runs.loss, run))(params, extra_state, batch)[0])


@pytest.mark.parametrize("prior", [0.0, 0.7])
def test_all_labels_as_fresh_negatives_are_the_loss_over_all_labels(prior, make_run):
  fresh = make_run(**{"method.num_fresh_negatives": tiny_runs.NUM_LABELS + 5, "method.log_prior": prior})
  whole = make_run(**{"method.num_fresh_negatives": 0, "method.labels": "all", "method.log_prior": prior})
  params, extra_state = _start(fresh)
  for step in range(3):
    found = _loss(fresh, params, extra_state, tiny_runs.placed_batch(fresh, step))
    expected = _loss(whole, params, {}, tiny_runs.placed_batch(whole, step))
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_the_largest_gradients_under_the_cache_are_chosen(make_run, monkeypatch):
  run = make_run()
  params, extra_state = _start(run)
  # A cache that is not what the encoder says: only this one can lead to what is chosen.
  stale = np.random.default_rng(0).normal(size=extra_state[cached_negatives.CACHE].shape).astype(np.float32)
  stale /= np.linalg.norm(stale, axis=1, keepdims=True)
  batch, chosen = jax.device_get(tiny_runs.placed_batch(run, 0)), []
  original = cached_negatives._largest

  def spy(*args):
    chosen.append(original(*args))
    return chosen[-1]

  monkeypatch.setattr(cached_negatives, "_largest", spy)
  extra_state = jax.device_put({cached_negatives.CACHE: stale})
  _, _, new_extra_state = run.method.loss(params, extra_state, batch, jax.random.key(0))
  chosen, cache = np.asarray(chosen[0]), np.asarray(new_extra_state[cached_negatives.CACHE])

  fresh = run.embedder.labels(params, {}).astype(np.float64)
  queries = run.embedder.queries(params, {}, run.data.train.tokens).astype(np.float64)
  pool = batch.columns[batch.columns >= 0]
  labels = stale[: run.dataset.num_labels].astype(np.float64)
  labels[pool] = fresh[pool]
  truth, filtered = run.data.train.truth.toarray() > 0, run.data.train.filter.toarray()
  gradients = np.zeros_like(labels)
  for row, positives, weights in zip(batch.rows, batch.positives, batch.weights):
    scores = labels @ queries[row] / run.config.method.temperature
    (sampled,) = positives[weights > 0]
    true = truth[row] & ~filtered[row]
    others = ~true & ~filtered[row]
    others[sampled] = True
    exps = np.where(others, np.exp(scores - scores.max()), 0.0)
    slope = exps / exps.sum()
    slope[sampled] -= 1.0
    gradients += slope[:, None] * queries[row]
  sizes = np.linalg.norm(gradients, axis=1)
  sizes[pool] = -1.0
  assert set(chosen.tolist()) == set(np.argsort(-sizes)[:6].tolist())
  assert not set(chosen.tolist()) & set(pool.tolist())

  renewed = np.union1d(pool, chosen)
  np.testing.assert_allclose(cache[renewed], fresh[renewed], atol=1e-5)
  kept = np.setdiff1d(np.arange(run.dataset.num_labels), renewed)
  np.testing.assert_array_equal(cache[kept], stale[kept])


def test_the_first_refresh_fills_the_cache_with_all_labels(make_run):
  run = make_run(**{"mesh.data": 2, "mesh.label": 4})  # 60 labels on 8 devices
  params, extra_state = _start(run)
  cache = extra_state[cached_negatives.CACHE]
  assert cache.shape == (64, 16) and cache.sharding.shard_shape(cache.shape) == (8, 16)
  np.testing.assert_allclose(cache[:60], run.embedder.labels(params, {}), atol=1e-6)


def test_a_rows_other_true_labels_are_never_its_negatives(make_run):
  """They are the hardest by far, and would be chosen first, were they not left out of the loss."""
  run = make_run(**{"train.batch_size": 1, "method.num_fresh_negatives": 59})
  params, extra_state = _start(run)
  step = next(step for step in range(40) if np.sum(run.batches.build(step).positives >= 0) > 2)
  batch = jax.device_get(tiny_runs.placed_batch(run, step))
  positives = batch.positives[0]
  unsampled = positives[(positives >= 0) & (batch.weights[0] == 0)]

  def loss_with(label):
    ids = np.array(batch.every_label.ids)
    ids[label] = 9
    return _loss(run, params, extra_state, batch._replace(every_label=replace(batch.every_label, ids=ids)))

  plain = _loss(run, params, extra_state, batch)
  assert len(unsampled) and all(loss_with(label) == pytest.approx(plain, rel=1e-6) for label in unsampled)
  other = next(label for label in range(60) if label not in positives and label not in batch.excluded)
  assert abs(loss_with(other) - plain) > 1e-5
