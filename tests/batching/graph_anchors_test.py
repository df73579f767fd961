"""Anchors sampled for a batch: linked ones alone, one a row, all linked ones marked, texts beside them."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse as sp
import tiny_runs
from made_builders import assert_texts

from xmc_jax.batching import graph_anchors as links_module
from xmc_jax.batching.builder import BatchBuilder
from xmc_jax.batching.graph_anchors import AnchorSampler, GraphEdges
from xmc_jax.batching.length_buckets import Layout
from xmc_jax.types import BatchSpec

N, A = 20, 15


def _graph(seed=0, density=0.25):
  edges = sp.csr_matrix(np.random.default_rng(seed).random((N, A)) < density)
  edges.sort_indices()
  return edges


def _sampler(edges, num_rows=8, weights=None, num_shards=1):
  anchors = tiny_runs.token_table(np.random.default_rng(5).integers(1, 20, A), seed=2)
  frequency = np.full(edges.shape[0], num_rows / edges.shape[0])
  side = GraphEdges(anchors, edges, None if weights is None else np.array(weights, np.float32))
  layout = Layout(32, num_shards)
  return anchors, AnchorSampler(side, num_rows=num_rows, frequency=frequency, layout=layout)


@hypothesis.given(
  rows=st.lists(st.integers(-1, N - 1), min_size=1, max_size=8),
  density=st.sampled_from([0.0, 0.25, 1.0]),
  pruned=st.sampled_from([0.0, 0.5, 1.0]),
  seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=60)
def test_one_kept_anchor_a_row_and_every_link_marked(rows, density, pruned, seed):
  rows = np.array(rows, np.int32)
  rows[np.setdiff1d(np.arange(len(rows)), np.unique(rows, return_index=True)[1])] = -1  # none comes twice
  edges = _graph(seed, density)
  kept = np.random.default_rng(seed).random(edges.nnz) >= pruned
  anchors, sampler = _sampler(edges, len(rows))
  links = sampler.sample(rows, np.arange(len(rows)), kept, np.random.default_rng(seed))
  left = sp.csr_matrix((kept, edges.indices, edges.indptr), shape=edges.shape).toarray()
  all_linked = edges.toarray()
  pool = links.columns[links.columns >= 0]
  assert len(set(pool.tolist())) == len(pool)
  sampled = set()
  for row, positives, weights in zip(rows, links.positives, links.weights):
    marked = {int(links.columns[column]) for column in positives if column >= 0}
    chosen = {int(links.columns[column]) for column, weight in zip(positives, weights) if weight}
    expected = set(np.flatnonzero(all_linked[row])) if row >= 0 else set()
    assert marked == expected & set(pool.tolist())
    assert len(chosen) == (row >= 0 and left[row].any()) and weights.sum() == len(chosen)
    assert all(left[row, anchor] for anchor in chosen)
    sampled |= chosen
  assert sampled == set(pool.tolist())
  assert_texts(links.anchors, anchors, links.columns)


@pytest.mark.parametrize(
  "weights, expected",
  [(None, [[0.5, 0, 0.5, 0], [0, 0, 0.5, 0.5]]), ([1, 2, 3, 4, 1], [[0.25, 0, 0.75, 0], [0, 0, 0.8, 0.2]])],
)
def test_kept_edges_are_sampled_alike_or_in_proportion_to_weights(weights, expected):
  """That is, by weights 1, 3 of 1, 2, 3 in the first row, and 4, 1 in the second."""
  edges, expected = np.zeros((2, A), bool), np.array(expected)
  edges[[0, 0, 0, 1, 1], [0, 1, 2, 2, 3]] = True
  kept = np.array([True, False, True, True, True])
  _, sampler = _sampler(sp.csr_matrix(edges), 2, weights)
  seen = np.zeros((2, A))
  for step in range(4000):
    links = sampler.sample(np.array([0, 1]), np.array([0, 1]), kept, np.random.default_rng(step))
    for row in range(2):
      (column,) = links.positives[row][links.weights[row] > 0]
      seen[row, links.columns[column]] += 1
  deviation = np.sqrt(expected * (1 - expected) / 4000)
  assert seen.sum() == 8000 and np.all(np.abs(seen[:, :4] / 4000 - expected) <= 5 * deviation)


def test_room_is_for_what_weights_sample():
  """1 - exp(-(sum of frequency x share)) of each anchor, in float64; empty rows are in it."""
  rng = np.random.default_rng(0)
  weights = (rng.random((N, A)) ** 6 + 1e-4) * (rng.random((N, A)) < 0.2)
  weights[[0, -1]] = 0
  frequency, sums = rng.random(N), weights.sum(axis=1, keepdims=True)
  sampled = 1 - np.exp(-(frequency @ (weights / np.where(sums > 0, sums, 1))))
  expected = sampled.sum() + 4.5 * np.sqrt((sampled * (1 - sampled)).sum())
  edges = sp.csr_matrix(weights)
  assert links_module._usual_number(GraphEdges(None, edges, edges.data), frequency) == np.ceil(expected)
  nothing = sp.csr_matrix((3, A))
  assert links_module._usual_number(GraphEdges(None, nothing, nothing.data), np.ones(3)) == 1


@pytest.mark.parametrize("num_shards", [1, 2, 8])
def test_shapes_do_not_depend_on_what_was_sampled(num_shards):
  _, sampler = _sampler(_graph(1), num_shards=num_shards)
  shapes = set()
  for step in range(20):
    generator = np.random.default_rng(step)
    links = sampler.sample(generator.integers(-1, N, 8), np.arange(8), None, generator)
    shapes.add((links.columns.shape, *(group.ids.shape for group in links.anchors), links.positives.shape))
    assert all(len(group.ids) % num_shards == 0 for group in links.anchors)
  assert len(shapes) == 1


def test_a_batch_links_its_points_and_its_labels():
  """Rows as the batch lays them out, labels as its columns stand; other samples are those without graphs."""
  rng = np.random.default_rng(0)
  truth = sp.csr_matrix(rng.random((N, 12)) < 0.3)
  options = {"batch_size": 8, "max_length": 32, "seed": 3}
  tables = tiny_runs.token_table(rng.integers(1, 40, N)), tiny_runs.token_table(rng.integers(1, 20, 12))
  common = (
    *tables,
    truth,
    sp.csr_matrix((N, 12), dtype=bool),
    BatchSpec(num_positives=2, num_random_negatives=2),
  )
  points, labels = _graph(1), _graph(2)[:12]
  anchors = tiny_runs.token_table(rng.integers(1, 20, A), seed=2)
  sides = {"g_query": GraphEdges(anchors, points), "g_label": GraphEdges(anchors, labels)}
  builder, without = BatchBuilder(*common, **options, sides=sides), BatchBuilder(*common, **options)
  kept = np.zeros(labels.nnz, bool)
  kept[::2] = True
  for step in range(builder.steps_per_epoch):
    batch = builder.build(step, {"kept_g_label": kept})
    for side, edges, of_batch in (("g_query", points, batch.rows), ("g_label", labels, batch.columns)):
      links = batch.sampled_anchors[side]
      real = links.rows[links.rows >= 0]
      assert len(set(real.tolist())) == len(real)
      if side == "g_query":
        np.testing.assert_array_equal(real, np.flatnonzero(batch.rows >= 0))
      else:  # one sampled label of each point, fewer where points share it
        for positives, weights in zip(batch.positives, batch.weights):
          assert not weights.any() or set(positives[weights > 0].tolist()) & set(real.tolist())
        assert set(real.tolist()) <= set(batch.positives[batch.weights > 0].tolist())
      ids = np.where(links.rows >= 0, of_batch[links.rows], -1)
      assert len(links.positives) == len(ids)
      for row, positives, weights in zip(ids, links.positives, links.weights):
        marked = {int(links.columns[column]) for column in positives if column >= 0}
        assert marked <= (set(edges[row].indices.tolist()) if row >= 0 else set())
        if side == "g_label" and row >= 0:
          left = edges[row].indices[kept[edges.indptr[row] : edges.indptr[row + 1]]]
          assert (weights.sum() == 1) == (len(left) > 0)
    plain = without.build(step)
    np.testing.assert_array_equal(batch.columns, plain.columns)
    np.testing.assert_array_equal(batch.positives, plain.positives)
    assert plain.sampled_anchors == {}


def test_what_samples_more_anchors_than_usual_gets_more_room():
  """Nine rows in ten share an anchor, so batches sample few; of the other rows each has its own. Both fit."""
  columns = np.concatenate([np.zeros(180), np.arange(1, 21)]).astype(int)
  edges = sp.csr_matrix((np.ones(200, bool), (np.arange(200), columns)), shape=(200, 21))
  anchors = tiny_runs.token_table(np.full(21, 5))
  frequency = np.full(200, 0.1)
  sampler = AnchorSampler(GraphEdges(anchors, edges), num_rows=20, frequency=frequency, layout=Layout(8))
  usual = sampler.sample(np.arange(0, 200, 10), np.arange(20), None, np.random.default_rng(0))
  many = sampler.sample(np.arange(180, 200), np.arange(20), None, np.random.default_rng(0))
  assert len(usual.columns) < 20 <= len(many.columns)
  for links in (usual, many):
    np.testing.assert_array_equal(links.weights.sum(axis=1), 1)
  # Room is for the rows that batches have.
  of_hub = frequency * (columns == 0)
  seldom = AnchorSampler(GraphEdges(anchors, edges), num_rows=20, frequency=of_hub, layout=Layout(8))
  links = seldom.sample(np.arange(20), np.arange(20), None, np.random.default_rng(0))
  assert len(links.columns) < len(usual.columns)
