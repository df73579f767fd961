"""PRIME: centroids by hand, prototypes of a pool and of all labels, and what its runs begin from."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny_runs

from xmc_jax import evaluate, mesh, methods, refresh, train_step, workflow
from xmc_jax import run as runs
from xmc_jax.contract import Batch, ConfigError
from xmc_jax.methods import label_centroids, prime_losses


def _batch(columns, positives, weights, excluded, rows=None):
  columns, positives = np.array(columns, np.int32), np.array(positives, np.int32)
  rows = np.arange(len(positives)) if rows is None else rows
  weights = np.array(weights, np.float32)
  return Batch(np.array(rows, np.int32), (), columns, (), positives, weights, np.array(excluded, np.int32))


def _moved(centroids, queries, batch, shape=(1, 1), **changes):
  settings = types.SimpleNamespace(**{"centroid_momentum": 0.95, "num_positives": 2} | changes)
  info = types.SimpleNamespace(mesh=mesh.make(*shape))
  aux = {"centroids": jnp.asarray(centroids)}
  return label_centroids.moved(aux, jnp.asarray(queries), batch, settings, info)


@pytest.mark.parametrize("shape", [(1, 1), (2, 2)])
def test_centroids_move_by_hand(shape):
  """Label 3 is drawn by two points: their mean. Label 6 by one. Label 1 is in the pool, and drawn by none."""
  batch = _batch(
    columns=[3, 1, 6, -1],
    positives=[[0, -1], [0, 2], [1, -1], [-1, -1]],
    weights=[[1, 0], [0.5, 0.5], [0, 0], [0, 0]],
    excluded=[[-1]] * 4,
    rows=[0, 1, 2, -1],
  )
  centroids = np.tile(np.arange(8.0)[:, None], (1, 2)).astype(np.float32)
  queries = np.array([[1, 0], [0, 2], [9, 9], [7, 7]], np.float32)
  expected = centroids.copy()
  expected[3] = 0.95 * 3 + 0.05 * np.array([0.5, 1.0])
  expected[6] = 0.95 * 6 + 0.05 * np.array([0.0, 2.0])
  np.testing.assert_allclose(_moved(centroids, queries, batch, shape), expected, rtol=1e-6)


def test_no_gradient_goes_through_a_centroid():
  batch = _batch([0], [[0]], [[1]], [[-1]])
  moved = lambda queries: _moved(np.ones((2, 2), np.float32), queries, batch).sum()
  assert not np.any(jax.grad(moved)(jnp.ones((1, 2))))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
  return tiny_runs.write_data(tmp_path_factory.mktemp("prime") / "data")


def _open(data, workdir, **changes):
  return tiny_runs.open_run(data, workdir, **tiny_runs.PRIME | changes)


def _started(run):
  """`(params, aux)` after the refreshes before the first step."""
  params, aux = run.initial_parameters()
  aux = train_step.first_state(run, optax.identity(), params, aux).aux
  snapshot = run.snapshot(params, aux, 0)
  for name in ("label_cluster", "centroids"):
    if name in run.method.refreshes:
      _, aux = refresh.renew(name, run.method.refreshes[name], snapshot, {}, aux)
  return params, aux, snapshot


@pytest.mark.parametrize("axes", [(1, 1), (2, 2)])
@pytest.mark.parametrize(
  "changes", [{}, {"method.num_label_clusters": 0}, {"method.centroids": "none"}], ids=["all", "-v", "-c"]
)
def test_prototypes_of_a_pool_are_those_of_all_labels(data, tmp_path, monkeypatch, changes, axes):
  sizes = {"mesh.data": axes[0], "mesh.label": axes[1]}
  run = _open(data, tmp_path / "run", **sizes, **{"method.prototype_dropout": 0.0}, **changes)
  params, aux, _ = _started(run)
  original = prime_losses.total

  def total(config, info, queries, texts, prototypes, batch):
    value, parts = original(config, info, queries, texts, prototypes, batch)
    return value, {"prototypes": prototypes, "texts": texts, **parts}

  monkeypatch.setattr(prime_losses, "total", total)
  batch = mesh.put_batch(run.batches.build(0), run.mesh)
  rows = {name: params[name][jnp.maximum(of(batch, aux), 0)] for name, of in run.method.tables.items()}
  loss = jax.jit(run.method.loss)
  _, caught, _ = loss({**params, **rows}, aux, {}, batch, jax.random.key(0))
  real = np.asarray(batch.columns) >= 0
  labels = np.asarray(batch.columns)[real]
  snapshot = run.snapshot(params, aux, 0)
  np.testing.assert_allclose(np.asarray(caught["prototypes"])[real], snapshot.labels[labels], atol=2e-6)
  np.testing.assert_allclose(np.asarray(caught["texts"])[real], snapshot.texts[labels], atol=2e-6)
  assert np.abs(snapshot.labels - snapshot.texts).max() > 0.01


def test_centroids_start_at_the_mean_of_their_points(data, tmp_path):
  run = _open(data, tmp_path / "run")
  _, aux, snapshot = _started(run)
  truth = (run.train.truth > 0).toarray()
  centroids = np.asarray(aux["centroids"])
  for label in range(tiny_runs.NUM_LABELS):
    points = snapshot.queries[truth[:, label]]
    expected = points.astype(np.float64).mean(0) if len(points) else snapshot.texts[label]
    np.testing.assert_allclose(centroids[label], expected / np.linalg.norm(expected), atol=1e-6)


@pytest.mark.slow
def test_momentum_and_frozen_and_exact_centroids(data, tmp_path):
  """What training leaves behind, and what labels are ranked by."""
  found = {}
  for kind in ("momentum", "frozen"):
    workdir = tmp_path / kind
    workflow.train_and_test(tiny_runs.config(data, **tiny_runs.PRIME, **{"method.centroids": kind}), workdir)
    run = runs.reopen(workdir)
    found[kind] = run, *run.trained()[:2]
  run, params, aux = found["momentum"]
  start = np.asarray(_started(_open(data, tmp_path / "start"))[1]["centroids"])
  np.testing.assert_array_equal(np.asarray(found["frozen"][2]["centroids"]), start)
  assert np.abs(np.asarray(aux["centroids"]) - start).max() > 0.01
  exact = label_centroids.with_exact(run.snapshot(params, aux, 0))
  points = run.snapshot(params, aux, 0).queries[(run.train.truth > 0).toarray()[:, 7]]
  mean = points.mean(0) / np.linalg.norm(points.mean(0))
  np.testing.assert_allclose(np.asarray(exact["centroids"])[7], mean, atol=1e-5)
  assert run.method.aux_to_rank is None


@pytest.mark.slow
def test_exact_centroids_are_what_labels_are_ranked_by(data, tmp_path):
  run = _open(data, tmp_path / "run", **{"method.exact_centroids": True})
  params, aux, _ = _started(run)
  drifted = {**aux, "centroids": aux["centroids"][::-1]}  # as if others had been kept
  queries = run.embed_queries(params, aux, run.train.tokens)
  exact, plain = (evaluate.ranker(run, params, given)(queries, 5).scores for given in (drifted, aux))
  np.testing.assert_allclose(exact, plain, atol=1e-6)


def test_positives_are_drawn_by_inverse_propensity(data, tmp_path):
  run = _open(data, tmp_path / "run")
  assert run.method.batch.positive_sampling == "inverse_propensity"
  np.testing.assert_array_equal(run.batches._label_odds, run.inverse_propensity)
  uniform = _open(data, tmp_path / "uniform", **{"method.positive_sampling": "uniform"})
  assert uniform.batches._label_odds is None


@pytest.mark.slow
def test_classifiers_begin_at_the_prototypes(data, tmp_path):
  source = tmp_path / "source"
  workflow.train_and_test(tiny_runs.config(data, **tiny_runs.PRIME), source)
  run = runs.reopen(source)
  params, aux, _ = run.trained()
  settings = {
    "method.name": "classifier",
    "method.labels": "in_batch_table",
    "method.loss": "margin",
    "data.path": "",
    "init_from": str(source),
    "encoder.embedding_dropout": 0.0,
  }
  classifiers = tiny_runs.open_run(data, tmp_path / "classifiers", **settings)
  found, _ = classifiers.initial_parameters()
  np.testing.assert_allclose(
    np.asarray(found["classifiers"])[: tiny_runs.NUM_LABELS], run.embed_labels(params, aux), atol=1e-6
  )


@pytest.mark.slow
def test_it_begins_from_another_encoder_or_from_a_run_of_its_own(data, tmp_path):
  ngame = {"method.name": "ngame", "method.loss": "margin", "method.labels": "in_batch"}
  workflow.train_and_test(tiny_runs.config(data, **ngame, **{"train.num_epochs": 1}), tmp_path / "ngame")
  run = _open(data, tmp_path / "run", init_from=str(tmp_path / "ngame"))
  params, aux, _ = _started(run)
  theirs, _, _ = runs.reopen(tmp_path / "ngame").trained()
  jax.tree.map(np.testing.assert_array_equal, params["encoder"], theirs["encoder"])

  short = tiny_runs.config(data, **tiny_runs.PRIME, **{"train.num_epochs": 1})
  workflow.train_and_test(short, tmp_path / "prime")
  params, aux, _ = runs.reopen(tmp_path / "prime").trained()
  run = _open(data, tmp_path / "more", init_from=str(tmp_path / "prime"))
  found_params, found_aux, _ = _started(run)  # its refreshes keep what came with the parameters
  jax.tree.map(np.testing.assert_array_equal, (found_params, found_aux), (params, aux))


def test_impossible_settings_are_refused(data):
  for changes, message in (
    ({"method.margin_minimum": 0.4}, r"method.margin_minimum = 0.4 is more than method.margin_maximum = 0.3"),
    ({"encoder.normalize": False}, "'dynamic_margin' compares cosines"),
    ({f"method.{name}_weight": 0.0 for name in ("prototype", "text", "reverse")}, "nothing is learnt"),
    ({"method.centroids": "none", "method.exact_centroids": True}, "exact_centroids = True has no effect"),
    ({"method.positive_sampling": "propensity"}, "did you mean .*inverse_propensity"),
    ({"method.loss": "softmax"}, "'prime' takes 'dynamic_margin' or 'margin'"),
  ):
    with pytest.raises(ConfigError, match=message):
      methods.check(tiny_runs.config(data, **tiny_runs.PRIME | changes))
