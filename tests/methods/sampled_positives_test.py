"""What losses do to positives, sampled in a step or not."""

import itertools
import json

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest
import tiny_runs

from xmc_jax.data.dataset import unfiltered
from xmc_jax.distributed import sharding
from xmc_jax.methods.components.pool_losses import pool_loss
from xmc_jax.runs import ranking
from xmc_jax.types import Batch, DatasetInfo


@pytest.fixture(scope="module")
def make_run(tmp_path_factory):
  folder, count = tmp_path_factory.mktemp("drawn"), itertools.count()
  data = tiny_runs.write_data(folder / "data")
  return lambda **overrides: tiny_runs.open_run(data, folder / f"run{next(count)}", **overrides)


def _gradient_by_scores(loss, scores, positives, weights, **options):
  """dL/ds `[S]` of a row, by `pool_loss`: label j is the unit vector j, so the query holds the scores."""
  config = ml_collections.ConfigDict(
    {
      "method": {
        "loss": loss,
        "score_chunk": 0,
        "keep_scores": 0,
        "score_precision": "float32",
        "temperature": 1.0,
        "num_positives": 1,
        "k": 5.0,
      }
      | options
    }
  )
  info = DatasetInfo(
    num_points=1, num_labels=len(scores), max_length=8, vocab_size=9, special_ids=(), mesh=sharding.make(1, 1)
  )
  batch = Batch(
    rows=np.zeros(1, np.int32),
    queries=(),
    columns=np.arange(len(scores), dtype=np.int32),
    labels=(),
    positives=np.array([positives], np.int32),
    weights=np.array([weights], np.float32),
    excluded=np.full((1, 1), -1, np.int32),
  )
  more = {"k": options["k"], "alpha": 2.0} if loss == "soft_top_k" else {}

  def total(queries):
    return pool_loss(config, info, loss, queries, np.eye(len(scores), dtype=np.float32), batch, **more)[0]

  return np.asarray(jax.grad(total)(np.array([scores], np.float32)))[0]


def test_losses_differ_in_what_they_do_to_positives_that_were_not_sampled():
  """DEXML, eq. 4 and 5: softmax pushes them down, decoupled softmax and SoftTop-k leave them alone."""
  scores, positives, weights = [0.5, 1.0, 2.0, -1.0, 0.0, 0.3], [1, 2, 5], [1.0, 0.0, 0.0]
  e = np.exp(np.array(scores))
  softmax = e / e.sum() - np.eye(6)[1]
  negatives = [0, 3, 4]
  seen = e * np.isin(np.arange(6), [*negatives, 1])
  decoupled = seen / seen.sum() - np.eye(6)[1]
  np.testing.assert_allclose(_gradient_by_scores("softmax", scores, positives, weights), softmax, atol=1e-6)
  found = _gradient_by_scores("decoupled_softmax", scores, positives, weights)
  np.testing.assert_allclose(found, decoupled, atol=1e-6)
  assert softmax[2] > 0.3 and found[2] == 0

  found = _gradient_by_scores("soft_top_k", scores, positives, weights, k=2.0)
  assert found[2] == found[5] == 0 and found[1] < 0 and np.all(found[negatives] > 0)
  all_sampled = _gradient_by_scores("soft_top_k", scores, positives, [1 / 3] * 3, k=3.0, num_positives=0)
  assert np.all(all_sampled[positives] < 0)


def test_soft_top_k_samples_as_many_positives_as_it_has_places(make_run):
  """min(k, |P|) in each row, more where more are asked for; 0 is all of them, eq. 6 itself."""
  for asked, k, most in ((1, 2.0, 2), (1, 1.5, 2), (3, 2.0, 3), (0, 2.0, 99)):
    run = make_run(**{"method.loss": "soft_top_k", "method.k": k, "method.num_positives": asked})
    batch = run.batches.build(0)
    counts = np.diff(unfiltered(run.data.train.truth, run.data.train.filter).indptr)
    real = batch.rows >= 0
    expected = np.minimum(counts[batch.rows[real]], most)
    np.testing.assert_array_equal((batch.weights[real] > 0).sum(axis=1), expected)
    assert expected.max() > 1


def test_baselines_sample_as_many_positives_as_are_asked_for(make_run):
  for name in ("dpr", "ance"):
    for asked in (1, 2, 0):
      more = {"method.num_hard_negatives": 1} if name == "ance" else {}
      run = make_run(**{"method.name": name, "method.num_positives": asked, **more})
      batch = run.batches.build(0)
      counts = np.diff(unfiltered(run.data.train.truth, run.data.train.filter).indptr)[
        batch.rows[batch.rows >= 0]
      ]
      expected = np.minimum(counts, asked) if asked else counts
      np.testing.assert_array_equal((batch.weights[batch.rows >= 0] > 0).sum(axis=1), expected)


def test_soft_top_k_compares_no_positive_with_all_others():
  """SoftTop-100 on rows of hundreds of labels: a mask [B, P, P] would be larger than all else."""
  num_rows, num_labels, width, drawn = 64, 800, 600, 100
  config = ml_collections.ConfigDict(
    {
      "method": {
        "loss": "soft_top_k",
        "k": 100.0,
        "num_positives": drawn,
        "score_chunk": 0,
        "keep_scores": 0,
        "score_precision": "float32",
        "temperature": 1.0,
      }
    }
  )
  info = DatasetInfo(
    num_points=num_rows,
    num_labels=num_labels,
    max_length=8,
    vocab_size=9,
    special_ids=(),
    mesh=sharding.make(1, 1),
  )
  batch = tiny_runs.pool_batch(
    columns=np.arange(num_labels),
    positives=np.tile(np.arange(width), (num_rows, 1)),
    weights=np.tile(np.arange(width) < drawn, (num_rows, 1)),
    excluded=np.full((num_rows, 1), -1),
  )

  def total(queries, labels):
    return jnp.sum(pool_loss(config, info, "soft_top_k", queries, labels, batch, k=100.0, alpha=2.0))

  tables = [jax.ShapeDtypeStruct((rows, 8), jnp.float32) for rows in (num_rows, num_labels)]
  memory = jax.jit(jax.grad(total, argnums=(0, 1))).lower(*tables).compile().memory_analysis()
  assert memory.temp_size_in_bytes < num_rows * drawn * width


def test_relevances_of_the_data_are_weights_of_a_step(tmp_path):
  path = tiny_runs.write_data(tmp_path / "data")
  points = [json.loads(line) for line in (path / "trn.json").read_text().splitlines()]
  lines = (
    json.dumps({**point, "target_rel": [1 + label for label in point["target_ind"]]}) for point in points
  )
  (path / "trn.json").write_text("\n".join(lines))
  settings = {"train.relevance_weights": True, "method.num_positives": 0}
  run = tiny_runs.open_run(path, tmp_path / "run", **settings)
  batch, truth = run.batches.build(0), unfiltered(run.truth, run.data.train.filter)
  for row, weights in zip(batch.rows, batch.weights):
    relevances = truth[row].data
    np.testing.assert_allclose(weights[weights > 0], relevances / relevances.sum(), rtol=1e-6)
  rows, votes = ranking.labelled(run, np.arange(9))
  relevances = run.dataset.train.unfiltered_positives[rows] * (1 / tiny_runs.NUM_LABELS)
  np.testing.assert_allclose(votes.toarray(), relevances.toarray(), rtol=1e-6)
