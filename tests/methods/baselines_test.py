"""DPR, ANCE and one-vs-all: the loss of a batch, in NumPy from the embeddings of a run (docs/formulas.md)."""

import jax
import numpy as np
import pytest
import tiny_runs
from scipy.special import logsumexp

from xmc_jax.distributed import sharding
from xmc_jax.runs.trained import Trained


@pytest.fixture(scope="module")
def data(tmp_path_factory):
  """A tiny data set with many filter pairs, of true labels and of others."""
  folder = tiny_runs.write_data(tmp_path_factory.mktemp("baselines") / "data")
  rng = np.random.default_rng(3)
  pairs = zip(np.repeat(np.arange(200), 6), rng.integers(0, tiny_runs.NUM_LABELS, 1200))
  lines = sorted({f"{row} {label}\n" for row, label in pairs})
  (folder / "filter_labels_train.txt").write_text("".join(lines))
  return folder


def _first_loss(run, params, extra_state, **refreshed):
  """`(loss, batch)` of the first batch."""
  batch = run.batches.build(0, refreshed)
  if not len(batch.columns):  # every label is one
    batch = batch._replace(columns=run.batches.label_columns)
  value, *_ = tiny_runs.loss(run, params, extra_state, sharding.put_batch(batch, run.mesh))
  return float(value), batch


@pytest.mark.parametrize("name", ["dpr", "ance"])
@pytest.mark.parametrize("unit", [True, False])
def test_dpr_and_ance_are_softmax_over_the_pool(data, tmp_path, name, unit):
  """One sampled positive a point; its others in the pool are in the denominator, filter pairs are not."""
  temperature = 0.05 if unit else 0.3
  settings = {"encoder.normalize": unit, "method.temperature": temperature, "method.loss": "softmax"}
  settings |= {"method.name": name, "encoder.embedding_dropout": 0.0}
  run, params, extra_state = tiny_runs.open_initial(data, tmp_path / "run", **settings)
  snapshot = Trained(run, params, extra_state).snapshot()
  lists, _ = tiny_runs.renewed(run, params, extra_state)
  found, batch = _first_loss(run, params, extra_state, **lists)
  queries, labels = (np.asarray(vectors, np.float64) for vectors in (snapshot.queries, snapshot.labels))
  pool = np.flatnonzero(batch.columns >= 0)
  filtered = (run.data.train.filter > 0).toarray()
  truth = (run.data.train.unfiltered_positives > 0).toarray()
  losses, others, left_out, drawn = [], 0, 0, set()
  for row in np.flatnonzero(batch.rows >= 0):
    point, ids = batch.rows[row], batch.columns[pool]
    scores = labels[ids] @ queries[point] / temperature
    kept = ~filtered[point, ids]
    (sampled,) = batch.columns[batch.positives[row][batch.weights[row] > 0]]
    assert truth[point, sampled]
    losses.append(logsumexp(scores[kept]) - scores[ids == sampled][0])
    others += np.count_nonzero(truth[point, ids]) - 1
    left_out += np.count_nonzero(~kept)
    drawn.add(sampled)
  assert others > 0 and left_out > 0
  assert (len(drawn) < len(pool)) == (name == "ance")  # hard negatives, which no point sampled
  assert found == pytest.approx(np.mean(losses), rel=1e-5)


def test_one_vs_all_is_binary_cross_entropy_over_all_labels(data, tmp_path):
  """All positives, every label, a sum over labels and a mean over points; at the start biases are -log L."""
  temperature = 0.5
  settings = {"method.loss": "binary", "method.labels": "table", "encoder.normalize": False}
  settings |= {"method.name": "ova", "method.temperature": temperature, "encoder.embedding_dropout": 0.0}
  run, params, extra_state = tiny_runs.open_initial(data, tmp_path / "run", **settings)
  found, batch = _first_loss(run, params, extra_state)
  table = np.asarray(params["table"], np.float64)[: tiny_runs.NUM_LABELS]
  np.testing.assert_allclose(table[:, -1], -temperature * np.log(tiny_runs.NUM_LABELS), rtol=1e-6)
  assert 0.015 < table[:, :-1].std() < 0.025
  queries = np.asarray(Trained(run, params, extra_state).snapshot().queries, np.float64)
  np.testing.assert_array_equal(queries[:, -1], 1)
  points = batch.rows[batch.rows >= 0]
  scores = (queries[points, :-1] @ table[:, :-1].T + table[:, -1]) / temperature
  truth = (run.data.train.truth > 0).toarray()[points]
  filtered = (run.data.train.filter > 0).toarray()[points]
  assert np.any(truth & filtered) and np.any(~truth & filtered)
  terms = np.where(truth, np.logaddexp(0, -scores), np.logaddexp(0, scores))
  assert found == pytest.approx((terms * ~filtered).sum(axis=1).mean(), rel=1e-5)


def test_sampled_label_gradients(data, tmp_path):
  """The loss is the same; of the gradient, a quarter of the labels give their part, on average the whole."""
  settings = {"method.labels": "all", "method.label_gradients": 0.25, "encoder.embedding_dropout": 0.0}
  run, params, extra_state = tiny_runs.open_initial(data, tmp_path / "run", **settings)
  whole = tiny_runs.open_run(data, tmp_path / "whole", **{**settings, "method.label_gradients": 1.0})
  batch = tiny_runs.placed_batch(run, 0)

  def value_and_gradient(run):
    of_key = lambda params, key: run.method.loss(params, extra_state, batch, key)[0]
    return jax.jit(jax.value_and_grad(of_key))

  expected, exact = value_and_gradient(whole)(params, jax.random.key(0))
  sampled, found = value_and_gradient(run), []
  for key in jax.random.split(jax.random.key(1), 300):
    value, gradient = sampled(params, key)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    found.append(gradient["encoder"]["word"])
  exact, found = np.asarray(exact["encoder"]["word"]), np.asarray(found, np.float64)
  error = np.sqrt(((found.mean(axis=0) - exact) ** 2).sum() / (exact**2).sum())
  spread = np.sqrt(found.var(axis=0).sum() / (exact**2).sum())
  assert error < 2 * spread / np.sqrt(len(found)) and 0.05 < spread < 1
