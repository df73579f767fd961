"""What losses do to positives, sampled in a step or not."""

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
from xmc_jax.runs import corpora
from xmc_jax.types import DatasetInfo

SOFT_TOP_K = {"method.loss": "soft_top_k"}


def _gradient_by_scores(loss, scores, positives, weights, **settings):
  """dL/ds `[S]` of a row, by `pool_loss`: label j is the unit vector j, so the query holds the scores."""
  method = {"loss": loss, "num_positives": 1, "temperature": 1.0, **settings}
  method |= {"score_chunk": 0, "keep_scores": 0, "score_precision": "float32"}
  config = ml_collections.ConfigDict({"method": method})
  info = DatasetInfo(1, len(scores), 8, 9, (), sharding.make(1, 1))
  batch = tiny_runs.pool_batch(
    columns=np.arange(len(scores)), positives=[positives], weights=[weights], excluded=[[-1]]
  )
  more = {"k": settings["k"], "alpha": 2.0} if loss == "soft_top_k" else {}

  def total(queries):
    return pool_loss(config, info, loss, queries, np.eye(len(scores), dtype=np.float32), batch, **more)[0]

  return np.asarray(jax.grad(total)(np.array([scores], np.float32)))[0]


def test_losses_differ_in_what_they_do_to_positives_that_were_not_sampled():
  """DEXML, eq. 4 and 5: softmax pushes them down, decoupled softmax and SoftTop-k leave them alone."""
  scores, positives, one = [0.5, 1.0, 2.0, -1.0, 0.0, 0.3], [1, 2, 5], [1.0, 0.0, 0.0]
  negatives, exp = [0, 3, 4], np.exp(scores)
  pool = exp * np.isin(np.arange(6), [*negatives, 1])
  softmax, decoupled = (
    _gradient_by_scores(loss, scores, positives, one) for loss in ("softmax", "decoupled_softmax")
  )
  np.testing.assert_allclose(softmax, exp / exp.sum() - np.eye(6)[1], atol=1e-6)
  np.testing.assert_allclose(decoupled, pool / pool.sum() - np.eye(6)[1], atol=1e-6)
  assert softmax[2] > 0.3 and decoupled[2] == 0

  sampled = _gradient_by_scores("soft_top_k", scores, positives, one, k=2.0)
  assert sampled[2] == sampled[5] == 0 and sampled[1] < 0 and np.all(sampled[negatives] > 0)
  of_all = _gradient_by_scores("soft_top_k", scores, positives, [1 / 3] * 3, k=3.0, num_positives=0)
  assert np.all(of_all[positives] < 0)


@pytest.mark.parametrize(
  "settings, most",
  [
    # SoftTop-k samples min(k, |P|) a row, more where more are asked for; 0 is all of them: eq. 6 itself.
    ({**SOFT_TOP_K, "method.k": 2.0, "method.num_positives": 1}, 2),
    ({**SOFT_TOP_K, "method.k": 1.5, "method.num_positives": 1}, 2),
    ({**SOFT_TOP_K, "method.k": 2.0, "method.num_positives": 3}, 3),
    ({**SOFT_TOP_K, "method.k": 2.0, "method.num_positives": 0}, 99),
    *(({"method.name": name, "method.num_positives": 2}, 2) for name in ("dpr", "ance")),
  ],
  ids=str,
)
def test_rows_sample_as_many_positives_as_are_asked_for(settings, most, data, tmp_path):
  run = tiny_runs.open_run(data, tmp_path / "run", **settings)
  batch = run.batches.build(0)
  counts, real = np.diff(run.data.train.unfiltered_positives.indptr), batch.rows >= 0
  assert counts[batch.rows[real]].max() > 1
  expected = np.minimum(counts[batch.rows[real]], most)
  np.testing.assert_array_equal((batch.weights[real] > 0).sum(axis=1), expected)


def test_soft_top_k_compares_no_positive_with_all_others():
  """SoftTop-100 on rows of hundreds of labels: a mask [B, P, P] would be larger than all else."""
  num_rows, num_labels, width, drawn = 64, 800, 600, 100
  method = {"loss": "soft_top_k", "k": 100.0, "num_positives": drawn, "temperature": 1.0}
  method |= {"score_chunk": 0, "keep_scores": 0, "score_precision": "float32"}
  config = ml_collections.ConfigDict({"method": method})
  info = DatasetInfo(num_rows, num_labels, 8, 9, (), sharding.make(1, 1))
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
  rows, votes = corpora.labelled(run, np.arange(9))
  relevances = run.dataset.train.unfiltered_positives[rows] * (1 / tiny_runs.NUM_LABELS)
  np.testing.assert_allclose(votes.toarray(), relevances.toarray(), rtol=1e-6)
