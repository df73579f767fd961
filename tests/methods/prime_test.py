"""PRIME: centroids by hand, prototypes of a pool and of all labels, and what its runs begin from."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_runs
from numpy_block import block

from xmc_jax import methods, refresh
from xmc_jax.cli import commands
from xmc_jax.distributed import sharding
from xmc_jax.errors import ConfigError
from xmc_jax.methods.components import centroid_updates, label_prototypes, prime_loss
from xmc_jax.ops import lazy_adam
from xmc_jax.retrieval.index import Index
from xmc_jax.retrieval.sources import Queries
from xmc_jax.runs import run as runs
from xmc_jax.runs.trained import Trained


def _moved(centroids, queries, batch, shape=(1, 1), **changes):
  settings = types.SimpleNamespace(**{"centroid_momentum": 0.95, "num_positives": 2} | changes)
  info = types.SimpleNamespace(mesh=sharding.make(*shape))
  extra_state = {"centroids": jnp.asarray(centroids)}
  update = centroid_updates.updated(extra_state, jnp.asarray(queries), batch, settings, info)
  return lazy_adam.put(extra_state["centroids"], *update, mesh=info.mesh if info.mesh.size > 1 else None)


def _batch_by_hand():
  """Three points and padding; the pool has labels 3, 1 and 6: 3 is sampled twice, 6 once, 1 never."""
  return tiny_runs.pool_batch(
    columns=[3, 1, 6, -1],
    positives=[[0, -1], [0, 2], [1, -1], [-1, -1]],
    weights=[[1, 0], [0.5, 0.5], [0, 0], [0, 0]],
    excluded=[[-1]] * 4,
    rows=[0, 1, 2, -1],
  )


@pytest.mark.parametrize("shape", [(1, 1), (2, 2)])
def test_centroids_move_by_hand(shape):
  """Label 3 is sampled by two points: their mean. Label 6 by one. Label 1 is in the pool, sampled by none."""
  batch = _batch_by_hand()
  centroids = np.tile(np.arange(8.0)[:, None], (1, 2)).astype(np.float32)
  queries = np.array([[1, 0], [0, 2], [9, 9], [7, 7]], np.float32)
  expected = centroids.copy()
  expected[3] = 0.95 * 3 + 0.05 * np.array([0.5, 1.0])
  expected[6] = 0.95 * 6 + 0.05 * np.array([0.0, 2.0])
  np.testing.assert_allclose(_moved(centroids, queries, batch, shape), expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (2, 2)])
def test_centroids_without_the_batch_by_hand(shape):
  """Label 3 has 4 points, two in the batch; 6 has one, so its text stands in; 1 is not sampled.

  As released, a step may compare a point with any of its labels: then the third point leaves label 1.
  """
  batch = _batch_by_hand()
  info = types.SimpleNamespace(mesh=sharding.make(*shape), label_counts=np.array([9, 5, 9, 4, 9, 9, 1, 9]))
  centroids = jnp.asarray(np.tile(np.arange(8.0)[:, None], (1, 2)), jnp.float32)
  queries = np.array([[1, 0], [0, 2], [9, 9], [7, 7]], np.float32)
  texts = np.array([[1, 1], [2, 2], [0.5, 0.25], [4, 4]], np.float32)

  def found(queries, texts, pairs):
    settings = types.SimpleNamespace(num_positives=2, triplet_positives=pairs)
    given = {"centroids": centroids}, queries, texts, batch, settings, info
    return centroid_updates.without_batch(*given)[:3]

  of_label_1 = {"sampled": [1.0, 1.0], "released": (5 * np.array([1.0, 1.0]) - [9, 9]) / 4}
  slopes = jax.grad(lambda *given: found(*given).sum(), argnums=(0, 1))
  for pairs, second in of_label_1.items():
    expected = [(4 * np.array([3.0, 3.0]) - [1, 2]) / 2, second, [0.5, 0.25]]
    np.testing.assert_allclose(found(queries, texts, pairs), expected, rtol=1e-6)
    assert not any(np.any(slope) for slope in slopes(queries, texts, pairs))


@pytest.mark.slow
def test_a_step_looks_at_centroids_without_the_batch(data, tmp_path):
  """Labels have points in the batch, so the losses differ; what is left out is tested above and below."""
  found = []
  for left_out in (False, True):
    changes = {"method.leave_batch_out": left_out, "method.prototype_dropout": 0.0}
    run = _open(data, tmp_path / f"run{left_out}", **changes)
    params, extra_state, _ = _started(run)
    step = tiny_runs.train_step(run)
    state = step.first_state(params, extra_state)
    _, metrics = step(state, sharding.put_batch(run.batches.build(0), run.mesh))
    found.append(float(metrics["prototype_loss"]))
  assert abs(found[0] - found[1]) > 1e-3


def _open(data, workdir, **changes):
  return tiny_runs.open_run(data, workdir, **tiny_runs.PRIME | changes)


def _started(run):
  """`(params, extra_state)` after the refreshes before the first step."""
  params, extra_state = run.initial_parameters()
  extra_state = tiny_runs.train_step(run).first_state(params, extra_state).extra_state
  snapshot = Trained(run, params, extra_state).snapshot()
  for name in ("label_cluster", "centroids"):
    if name in run.method.refreshes:
      _, extra_state = refresh.renew(name, run.method.refreshes[name], snapshot, {}, extra_state)
  return params, extra_state, snapshot


@pytest.mark.parametrize("axes", [(1, 1), pytest.param((2, 2), marks=pytest.mark.slow)])
@pytest.mark.parametrize(
  "changes",
  [
    pytest.param({}, id="all", marks=pytest.mark.slow),
    pytest.param({"method.num_label_clusters": 0}, id="without vectors", marks=pytest.mark.slow),
    pytest.param({"method.centroids": "none"}, id="without centroids"),
  ],
)
def test_prototypes_of_a_pool_are_those_of_all_labels(data, tmp_path, monkeypatch, changes, axes):
  sizes = {"mesh.data": axes[0], "mesh.label": axes[1]}
  run = _open(data, tmp_path / "run", **sizes, **{"method.prototype_dropout": 0.0}, **changes)
  params, extra_state, _ = _started(run)
  original = prime_loss.total

  def total(config, info, queries, texts, prototypes, batch, key):
    value, parts = original(config, info, queries, texts, prototypes, batch, key)
    return value, {"prototypes": prototypes, "texts": texts, **parts}

  monkeypatch.setattr(prime_loss, "total", total)
  batch = sharding.put_batch(run.batches.build(0), run.mesh)
  _, caught, _ = jax.jit(functools.partial(tiny_runs.loss, run))(params, extra_state, batch)
  real = np.asarray(batch.columns) >= 0
  labels = np.asarray(batch.columns)[real]
  snapshot = Trained(run, params, extra_state).snapshot()
  np.testing.assert_allclose(np.asarray(caught["prototypes"])[real], snapshot.labels[labels], atol=2e-6)
  np.testing.assert_allclose(np.asarray(caught["texts"])[real], snapshot.texts[labels], atol=2e-6)
  assert np.abs(snapshot.labels - snapshot.texts).max() > 0.01


@pytest.mark.parametrize("unit_texts", [False, True])
def test_a_prototype_is_a_block_of_text_centroid_and_free_vector(data, tmp_path, unit_texts):
  """docs/formulas.md, "PRIME", in NumPy from a run's parameters, label by label."""
  run = _open(data, tmp_path / "run", **{"method.unit_texts": unit_texts})
  params, extra_state, _ = _started(run)
  rng = np.random.default_rng(0)
  params = {**params, "free_vectors": rng.standard_normal(params["free_vectors"].shape).astype(np.float32)}
  tables = jax.device_get((params, extra_state))
  texts = tiny_runs.bag_means(run, tables[0], run.dataset.labels.tokens)
  ranked = Trained(run, params, extra_state).snapshot().labels
  for label in range(0, tiny_runs.NUM_LABELS, 7):
    text = texts[label] / np.linalg.norm(texts[label]) if unit_texts else texts[label]
    free = tables[0]["free_vectors"][tables[1]["label_cluster"][label]]
    vectors = np.stack([text, tables[1]["centroids"][label], free]).astype(np.float64)
    mixed = block(vectors[None], tables[0]["prototype"]["layer"]).mean(1)[0]
    np.testing.assert_allclose(ranked[label], mixed / np.linalg.norm(mixed), atol=2e-6)


def test_centroids_start_at_the_mean_of_their_points(data, tmp_path):
  run = _open(data, tmp_path / "run")
  _, extra_state, snapshot = _started(run)
  truth = (run.data.train.unfiltered_positives > 0).toarray()
  assert truth.sum() < (run.data.train.truth > 0).sum()  # a filtered pair says nothing of its label
  centroids = np.asarray(extra_state["centroids"])
  for label in range(tiny_runs.NUM_LABELS):
    points = snapshot.queries[truth[:, label]]
    expected = points.astype(np.float64).mean(0) if len(points) else snapshot.texts[label]
    np.testing.assert_allclose(centroids[label], expected / np.linalg.norm(expected), atol=1e-6)


@pytest.mark.parametrize("kind", ["momentum", "exact"])
def test_a_started_run_leaves_the_batch_out_for_good(data, tmp_path, kind):
  """Centroids of the pool are the means of other points alone: nothing of a query is in what it asks for."""
  run = _open(data, tmp_path / "run", **{"method.centroids": kind, "method.leave_batch_out": True})
  _, extra_state, snapshot = _started(run)
  truth, batch = (run.data.train.unfiltered_positives > 0).toarray(), run.batches.build(0)
  queries = jnp.asarray(snapshot.queries[np.maximum(batch.rows, 0)])
  texts = jnp.asarray(snapshot.texts[np.maximum(batch.columns, 0)])
  np.testing.assert_array_equal(run.label_counts, truth.sum(0))
  info = types.SimpleNamespace(mesh=run.mesh, label_counts=run.label_counts)
  found = centroid_updates.without_batch(extra_state, queries, texts, batch, run.config.method, info)
  left_out = 0
  for column in np.flatnonzero(batch.columns >= 0):
    label = batch.columns[column]
    sampled = {batch.rows[row] for row in range(len(batch.rows)) if column in _sampled(batch, row)}
    others = [point for point in np.flatnonzero(truth[:, label]) if point not in sampled]
    expected = snapshot.queries[others].astype(np.float64).mean(0) if others else snapshot.texts[label]
    np.testing.assert_allclose(found[column], expected, atol=1e-5)
    left_out += len(sampled) > 0
  assert left_out > 5


def _sampled(batch, row):
  return [column for column, weight in zip(batch.positives[row], batch.weights[row]) if weight > 0]


def test_exact_centroids_are_made_anew_by_the_encoder_of_the_moment(data, tmp_path):
  run = _open(data, tmp_path / "run", **{"method.centroids": "exact"})
  params, extra_state, _ = _started(run)
  anew = run.method.refreshes["centroids"]
  assert anew.every_epochs == 1.0
  params = jax.tree.map(lambda leaf: leaf * 1.5 + 0.1, params)  # as if it had learnt
  snapshot = Trained(run, params, extra_state, 10).snapshot()
  _, renewed = refresh.renew("centroids", anew, snapshot, {}, extra_state)
  points = snapshot.queries[(run.data.train.unfiltered_positives > 0).toarray()[:, 7]]
  np.testing.assert_allclose(renewed["centroids"][7], points.mean(0), atol=1e-6)
  np.testing.assert_allclose(
    Trained(run, params, extra_state).extra_state_to_rank["centroids"], renewed["centroids"], atol=1e-6
  )
  assert np.abs(np.asarray(renewed["centroids"]) - np.asarray(extra_state["centroids"])).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["momentum", "frozen", "exact"])
def test_momentum_alone_moves_centroids_in_a_step(kind, data, tmp_path):
  """After an epoch; that a checkpoint has them is resume_test's."""
  run = _open(data, tmp_path / "run", **{"method.centroids": kind})
  params, extra_state, _ = _started(run)
  start = np.asarray(extra_state["centroids"])
  step = tiny_runs.train_step(run)
  state = step.first_state(params, extra_state)
  for number in range(run.batches.steps_per_epoch):
    state, _ = step(state, sharding.put_batch(run.batches.build(number), run.mesh))
  moved = np.abs(np.asarray(state.extra_state["centroids"]) - start).max()
  assert moved > 0.01 if kind == "momentum" else moved == 0


def test_exact_centroids_are_what_labels_are_ranked_by(data, tmp_path):
  run = _open(data, tmp_path / "run", **{"method.exact_centroids": True})
  params, extra_state, snapshot = _started(run)
  drifted = {**extra_state, "centroids": extra_state["centroids"][::-1]}  # as if others had been kept
  ranked = Trained(run, params, drifted).extra_state_to_rank
  points = snapshot.queries[(run.data.train.unfiltered_positives > 0).toarray()[:, 7]]
  np.testing.assert_allclose(ranked["centroids"][7], points.mean(0), atol=1e-6)  # of no special length
  exact, plain = (
    Index(run.embedder.labels(params, other), backend="exact").search(snapshot.queries, 5).scores
    for other in (ranked, drifted)
  )
  found = Trained(run, params, drifted).ranker()(Queries(snapshot.queries, run.data.train.texts), 5).scores
  np.testing.assert_allclose(found, exact, atol=1e-6)
  assert np.abs(found - plain).max() > 1e-3


@pytest.mark.slow
def test_a_step_writes_what_its_pool_touches_and_nothing_else(data, tmp_path):
  """Through TrainStep: centroids of sampled labels, free vectors, moments of their clusters; bit by bit."""
  run = _open(data, tmp_path / "run", **{"train.batch_size": 8, "method.num_label_clusters": 32})
  params, extra_state, _ = _started(run)
  step = tiny_runs.train_step(run)
  state = step.first_state(params, extra_state)
  tables = lambda state: jax.device_get(
    (state.params["free_vectors"], state.opt_state[1]["free_vectors"], state.extra_state)
  )
  before = tables(state)
  batch = run.batches.build(0)
  after = tables(step(state, sharding.put_batch(batch, run.mesh))[0])
  sampled = {int(batch.columns[c]) for c in batch.positives[batch.weights > 0]}
  clusters = {int(before[2]["label_cluster"][label]) for label in batch.columns[batch.columns >= 0]}
  assert 0 < len(clusters) < 32 and 0 < len(sampled) < tiny_runs.NUM_LABELS
  for old, new, touched in (
    (before[2]["centroids"], after[2]["centroids"], sampled),
    (before[0], after[0], clusters),
    (before[1].mean, after[1].mean, clusters),
  ):
    moved = np.flatnonzero(np.any(old != new, axis=1))
    assert set(moved.tolist()) == touched
  np.testing.assert_array_equal(before[2]["label_cluster"], after[2]["label_cluster"])


@pytest.mark.slow
def test_prototypes_of_a_pool_have_dropout(data, tmp_path):
  run = _open(data, tmp_path / "run", **{"method.prototype_dropout": 0.5})
  info = types.SimpleNamespace(
    mesh=run.mesh, num_labels=tiny_runs.NUM_LABELS, label_counts=np.ones(tiny_runs.NUM_LABELS)
  )
  made = label_prototypes.build(run.config, info, 16)
  params, extra_state = made.init(jax.random.key(0))
  extra_state["centroids"] = jax.random.normal(jax.random.key(3), (60, 16))
  texts, labels = jnp.asarray(np.random.default_rng(1).standard_normal((4, 16))), jnp.arange(4)
  pool = {**params, label_prototypes.TABLE: jnp.zeros((4, 16))}
  one, other = (made.of_pool(pool, extra_state, texts, labels, jax.random.key(seed)) for seed in (1, 2))
  assert np.abs(one - other).max() > 0.01


def test_tables_lie_split_over_the_devices(data, tmp_path):
  run = _open(data, tmp_path / "run", **{"mesh.data": 2, "mesh.label": 4})
  params, extra_state = run.initial_parameters()
  state = tiny_runs.train_step(run).first_state(params, extra_state)
  for table, rows in ((state.extra_state["centroids"], 64), (state.params["free_vectors"], 8)):
    assert table.sharding.shard_shape(table.shape) == (rows // 8, 16)


def test_positives_are_sampled_by_inverse_propensity(data, tmp_path):
  run = _open(data, tmp_path / "run")
  assert run.method.batch.positive_sampling == "inverse_propensity"
  np.testing.assert_array_equal(run.batches._label_weights, run.data.inverse_propensity)
  uniform = _open(data, tmp_path / "uniform", **{"method.positive_sampling": "uniform"})
  assert uniform.batches._label_weights is None


@pytest.mark.slow
def test_classifiers_begin_at_the_prototypes_that_are_ranked_by(data, tmp_path):
  source = tmp_path / "source"
  config = tiny_runs.config(data, **tiny_runs.PRIME, **{"method.exact_centroids": True})
  commands.train_and_test(config, source)
  trained = runs.reopen(source).trained()
  labels = functools.partial(trained.run.embedder.labels, trained.params)
  expected = labels(trained.extra_state_to_rank)
  assert np.abs(expected - labels(trained.extra_state)).max() > 1e-3
  settings = tiny_runs.CLASSIFIER | {"data.path": "", "init_from": str(source)}
  _, found, _ = tiny_runs.open_initial(data, tmp_path / "classifiers", **settings)
  np.testing.assert_allclose(np.asarray(found["classifiers"])[: tiny_runs.NUM_LABELS], expected, atol=1e-6)
  # And prototypes cannot begin from classifiers, whose encoder is not theirs.
  commands.train_and_test(
    tiny_runs.config(data, **settings | {"data.path": str(data), "train.num_epochs": 1}), tmp_path / "trained"
  )
  with pytest.raises(ConfigError, match=r"init_from = .*has trained no encoder"):
    _open(data, tmp_path / "run", init_from=str(tmp_path / "trained")).initial_parameters()


@pytest.mark.slow
def test_it_begins_from_another_encoder_or_from_a_run_of_its_own(data, tmp_path):
  short = {"train.num_epochs": 1}
  commands.train_and_test(tiny_runs.config(data, **tiny_runs.NGAME | short), tmp_path / "ngame")
  run = _open(data, tmp_path / "run", init_from=str(tmp_path / "ngame"))
  params, extra_state, _ = _started(run)
  theirs = runs.reopen(tmp_path / "ngame").trained().params
  jax.tree.map(np.testing.assert_array_equal, params["encoder"], theirs["encoder"])

  dexa = {**tiny_runs.DEXA, "method.num_label_clusters": 16}  # clusters of another table
  commands.train_and_test(tiny_runs.config(data, **dexa | short), tmp_path / "dexa")
  _, extra_state, _ = _started(_open(data, tmp_path / "after_dexa", init_from=str(tmp_path / "dexa")))
  assert set(np.asarray(extra_state["label_cluster"]).tolist()) == set(range(8))

  commands.train_and_test(tiny_runs.config(data, **tiny_runs.PRIME | short), tmp_path / "prime")
  trained = runs.reopen(tmp_path / "prime").trained()
  params, extra_state = trained.params, trained.extra_state
  run = _open(data, tmp_path / "more", init_from=str(tmp_path / "prime"))
  found_params, found_aux, _ = _started(run)  # its refreshes keep what came with the parameters
  jax.tree.map(np.testing.assert_array_equal, (found_params, found_aux), (params, extra_state))


def test_impossible_settings_are_refused(data):
  for changes, message in (
    ({"method.margin_minimum": 0.4}, r"method.margin_minimum = 0.4 is more than method.margin_maximum = 0.3"),
    ({"encoder.normalize": False}, "'dynamic_margin' compares cosines"),
    ({f"method.{name}_weight": 0.0 for name in ("prototype", "text", "reverse")}, "nothing is learnt"),
    ({"method.centroids": "none", "method.exact_centroids": True}, "exact_centroids = True has no effect"),
    ({"method.centroids": "exact", "method.centroid_momentum": 0.9}, "momentum = 0.9 has no effect"),
    ({"method.centroids": "none", "method.leave_batch_out": True}, "leave_batch_out = True has no effect"),
    ({"method.centroids": "frozen", "method.leave_batch_out": True}, "cannot take points out .* 'frozen'"),
    ({"method.prototype_weight": 0.0, "method.regulariser_weight": 0.0}, "would not be trained"),
    ({"method.margin": 0.2}, r"method.margin = 0.2 has no effect when method.loss = 'dynamic_margin'"),
    ({"method.loss": "margin", "method.margin_maximum": 0.4}, "margin_maximum = 0.4 has no effect"),
  ):
    with pytest.raises(ConfigError, match=message):
      methods.check_config(tiny_runs.config(data, **tiny_runs.PRIME | changes))
