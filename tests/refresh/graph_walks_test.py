"""Random walks over a metadata graph: against exact visit probabilities, and what is kept of them."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse as sp

from xmc_jax.refresh import graph_walks


def _graph(seed, num_points=9, num_anchors=6, density=0.3):
  return sp.csr_matrix(np.random.default_rng(seed).random((num_points, num_anchors)) < density)


def _visits(dense, num_hops, restart):
  """`[A, A]` expected visits of a walk from each anchor, exactly; anchors without points have none."""
  to_points = dense.T / np.maximum(dense.sum(0), 1)[:, None]
  to_anchors = dense / np.maximum(dense.sum(1), 1)[:, None]
  step, here, total = to_points @ to_anchors, np.eye(dense.shape[1]), 0
  for _ in range(num_hops):
    here = (restart * here.sum(1)[:, None] * np.eye(len(here)) + (1 - restart) * here) @ step
    total = total + here
  return total


@pytest.mark.parametrize("restart", [0.0, 0.8])
def test_visits_are_the_exact_ones(restart):
  """Where nothing is dropped: 40,000 hops, so that 1.5 % of a walk is five standard deviations."""
  graph = _graph(0)
  found = graph_walks.walk_visits(graph, num_hops=40_000, restart=restart, num_kept=6).toarray()
  expected = _visits(graph.toarray().astype(float), 40_000, restart)
  np.testing.assert_allclose(found / 40_000, expected / 40_000, atol=0.015)
  np.testing.assert_array_equal(found.sum(axis=1), np.where(graph.toarray().any(axis=0), 40_000, 0))


def test_the_most_visited_are_kept():
  """Two chains; from anchor 0 the walk comes back most, then to its neighbour, and seldom further."""
  chain = np.zeros((5, 6), bool)
  for point, pair in enumerate([(0, 1), (1, 2), (2, 3), (4, 5), (4, 5)]):
    chain[point, list(pair)] = True
  found = graph_walks.walk_visits(chain, num_kept=2).toarray()
  assert found[0].nonzero()[0].tolist() == [0, 1] and found[5].nonzero()[0].tolist() == [4, 5]
  assert np.count_nonzero(graph_walks.walk_visits(chain, num_kept=1).toarray(), axis=1).tolist() == [1] * 6
  whole = graph_walks.walk_visits(chain, num_hops=4000, num_kept=6).toarray() > 0
  assert whole[:4, :4].all() and whole[4:, 4:].all() and not whole[:4, 4:].any()


@hypothesis.given(
  seed=st.integers(0, 500), num_kept=st.integers(1, 4), density=st.sampled_from([0.0, 0.2, 1.0])
)
@hypothesis.settings(max_examples=30)
def test_a_walk_stays_within_reach(seed, num_kept, density):
  graph = _graph(seed, density=density)
  found = graph_walks.walk_visits(graph, num_hops=50, num_kept=num_kept, seed=seed).toarray() > 0
  reachable = np.linalg.matrix_power((graph.T @ graph).toarray().astype(float), 12) > 0
  assert not np.any(found & ~reachable)
  linked = graph.toarray().any(axis=0)
  assert np.all(found.sum(axis=1) <= num_kept) and np.all(found.any(axis=1) == linked)


def test_edges_are_added_and_none_is_lost():
  """A point of anchor 0 alone gets anchor 1, which another of its points has; edge values do not matter."""
  edges = sp.csr_matrix(np.array([[0.5, 0, 0], [2.0, 1.0, 0], [0, 0, 7.0]]))
  found = graph_walks.with_walks(edges, num_kept=2)
  assert found.dtype == bool
  np.testing.assert_array_equal(found.toarray(), [[1, 1, 0], [1, 1, 0], [0, 0, 1]])
  alone = graph_walks.with_walks(edges, num_kept=1, restart=0.99)
  assert np.all(alone.toarray() >= (edges.toarray() > 0))


@pytest.mark.parametrize("walked", [graph_walks.with_walks, graph_walks.with_visits])
def test_edges_and_weights_are_made_some_rows_at_a_time(walked, monkeypatch):
  graph = _graph(4, 40, 12)
  whole = walked(graph, num_hops=50, num_kept=3)
  monkeypatch.setattr(graph_walks, "_ROWS", 7)
  np.testing.assert_array_equal(walked(graph, num_hops=50, num_kept=3).toarray(), whole.toarray())


def _sampling_weights(edges, visits, num_hops):
  """Float64: 1 for an own edge, and of each walk from an own anchor the share of hops that ended there."""
  edges, visits = np.asarray(edges, float), np.asarray(visits, float)
  found = edges.copy()
  for row, anchor in zip(*edges.nonzero()):
    found[row] += visits[anchor] / num_hops
  return found


@hypothesis.given(
  seed=st.integers(0, 500), num_kept=st.integers(1, 6), density=st.sampled_from([0.0, 0.3, 1.0])
)
@hypothesis.settings(max_examples=30)
def test_weights_are_their_formula_and_leave_own_edges_half_of_the_samples(seed, num_kept, density):
  graph, options = _graph(seed, 12, 8, density), {"num_hops": 60, "num_kept": num_kept, "seed": seed}
  visits, found = graph_walks.walk_visits(graph, **options), graph_walks.with_visits(graph, **options)
  assert visits.sum(axis=1).max() <= 60
  np.testing.assert_allclose(
    found.toarray(), _sampling_weights(graph.toarray(), visits.toarray(), 60), rtol=1e-6
  )
  linked = graph_walks.with_walks(graph, **options)  # the same edges, in the same order
  np.testing.assert_array_equal(found.indptr, linked.indptr)
  np.testing.assert_array_equal(found.indices, linked.indices)
  own = np.where(graph.toarray(), found.toarray(), 0).sum(axis=1)
  assert np.all(own >= 0.5 * found.toarray().sum(axis=1) * (1 - 1e-6))


def test_the_same_seed_walks_the_same_way(monkeypatch):
  graph, done = _graph(3, 40, 30), []
  monkeypatch.setattr(graph_walks, "_CHUNK", 7 * 20)
  first, second = (
    graph_walks.walk_visits(graph, num_hops=20, seed=seed, progress=done.append) for seed in (1, 1)
  )
  np.testing.assert_array_equal(first.toarray(), second.toarray())
  assert done[:5] == [7, 14, 21, 28, 30]
  other = graph_walks.walk_visits(graph, num_hops=20, seed=2)
  assert np.any(other.toarray() != first.toarray())


def test_a_graph_without_anchors_or_edges():
  assert graph_walks.walk_visits(sp.csr_matrix((3, 0))).shape == (0, 0)
  assert graph_walks.with_walks(sp.csr_matrix((3, 4))).nnz == 0
  assert graph_walks.with_visits(sp.csr_matrix((3, 4))).nnz == 0
  assert graph_walks.with_visits(sp.csr_matrix((0, 4))).shape == (0, 4)
