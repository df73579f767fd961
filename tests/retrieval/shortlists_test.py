"""Shortlists: nearest labels, true ones left out, never padded with a label, by either backend."""

import importlib.util
import re

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from nearest_by_sort import by_hand, clustered, overlap

from xmc_jax import refresh
from xmc_jax.distributed import sharding
from xmc_jax.errors import ConfigError
from xmc_jax.retrieval import index, shortlists

K = 20
BACKEND = pytest.mark.parametrize("backend", ["exact", "scann"])
# The others hold for what takes ScaNN's place, too.
NEEDS_SCANN = pytest.mark.skipif(importlib.util.find_spec("scann") is None, reason="needs ScaNN")


@pytest.fixture(autouse=True)
def _loaded_anew():
  """What is said once is said once a test."""
  index._load.cache_clear()
  yield
  index._load.cache_clear()


@BACKEND
def test_true_labels_are_left_out_and_short_rows_are_padded(backend):
  rng = np.random.default_rng(0)
  queries, labels = rng.normal(size=(6, 4)).astype(np.float32), rng.normal(size=(9, 4)).astype(np.float32)
  truth = sp.csr_matrix(rng.random((6, 9)) < 0.5)
  found = refresh.shortlist(queries, labels, 7, backend=backend, exclude=truth)
  assert found.shape == (6, 7) and found.dtype == np.int32
  for row, ids in enumerate(found):
    left = [label for label in np.argsort(-(queries[row] @ labels.T)) if not truth[row, label]]
    assert ids.tolist() == (left + [-1] * 7)[:7]


@BACKEND
@pytest.mark.parametrize("sizes", [(0, 1500, 4), (3, 1, 4), (1, 1500, 1), (3, 1500, 3)])
def test_odd_sizes(backend, sizes):
  num_queries, num_labels, dim = sizes
  queries, labels = clustered(num_queries, num_labels, dim)
  found = refresh.shortlist(queries, labels, K, backend=backend)
  assert found.shape == (num_queries, K) and found.dtype == np.int32
  best = np.take_along_axis(queries @ labels.T, found, 1)
  expected = np.take_along_axis(queries @ labels.T, by_hand(queries, labels, K), 1)
  np.testing.assert_array_equal(found >= 0, np.broadcast_to(np.arange(K) < num_labels, found.shape))
  np.testing.assert_allclose(best[found >= 0], expected[found >= 0], rtol=0.05, atol=1e-6)


@NEEDS_SCANN
def test_scann_finds_what_the_exact_search_finds_and_says_how_much(capfd):
  queries, labels = clustered(200, 5000)  # the sample is all the queries
  found = refresh.shortlist(queries, labels, K, backend="scann")
  said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("shortlist")]
  recall = overlap(found, by_hand(queries, labels, K))
  assert recall >= index.RECALL
  assert len(said) == 1 and "5,000 labels, " in said[0] and " of 71 leaves" in said[0]
  assert "less than" not in said[0]
  assert re.search(rf"recall@{K} (\S+) of 200 queries", said[0])[1] == f"{recall:.3f}"


@NEEDS_SCANN
def test_a_row_whose_leaves_hold_too_few_labels_is_searched_in_all():
  queries, labels = clustered(50, 2000)
  built = index._build(labels, 200)._replace(leaves=1)  # of some 45 labels
  found = index._find(built, queries, 200, None).ids
  assert overlap(found, by_hand(queries, labels, 200)) >= index.RECALL and found.min() >= 0


@pytest.mark.slow
@pytest.mark.parametrize("labels", ["equal", "zero", "twice"])
def test_scann_bears_labels_that_are_equal(labels, capfd):
  queries, table = clustered(20, 2000)
  same = {"equal": np.ones_like(table), "zero": np.zeros_like(table), "twice": np.repeat(table[:1000], 2, 0)}
  table = same[labels]
  found = refresh.shortlist(queries, table, K, backend="scann")
  assert found.min() >= 0 and all(len(set(row)) == K for row in found.tolist())
  assert "less than" not in capfd.readouterr().err  # what ties with the last is as good


@pytest.mark.parametrize(
  "num_queries, shape, platform, expected",
  [
    (1_000_000, (1_000_000, 768), "cpu", "scann"),
    (1_000_000, (1_000_000, 768), "gpu", "exact"),
    (1_000_000, (1_000_000, 768), "tpu", "exact"),
    (19_200, (10_000, 128), "cpu", "scann"),
    (19_200, (9_999, 128), "cpu", "exact"),
    (19_199, (10_000, 128), "cpu", "exact"),
    (19_200, (10_000, 129), "cpu", "exact"),
  ],
)
def test_auto_chooses_by_device_and_size(num_queries, shape, platform, expected):
  assert index._choose(num_queries, shape, platform) == expected


@pytest.mark.parametrize("where", ["host", "device", "mesh"])
def test_auto_is_what_it_chooses(where, monkeypatch):
  chosen = []
  monkeypatch.setattr(index, "_choose", lambda *sizes: chosen.append(sizes) or "exact")
  queries, labels = clustered(4, 30)
  placed = jax.device_put(labels) if where == "device" else labels
  found = refresh.shortlist(queries, placed, 3, devices=sharding.make(1, 2) if where == "mesh" else None)
  np.testing.assert_array_equal(found, by_hand(queries, labels, 3))
  assert chosen == [(4, (30, 16), "cpu")]


def test_an_unknown_backend_is_refused():
  with pytest.raises(ConfigError, match="'faiss' is not one of 'auto', 'exact', 'scann'"):
    refresh.shortlist(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), 1, backend="faiss")


def test_a_tpu_selects_in_one_pass_unless_told_to_be_exact(monkeypatch):
  queries, labels = (np.random.default_rng(seed).normal(size=(30, 8)).astype(np.float32) for seed in (0, 1))
  exact, recalls = refresh.shortlist(queries, labels, 5), []
  searched = shortlists.search
  monkeypatch.setattr(shortlists.runtime, "device", lambda: ("tpu", 0))
  recorded = lambda *args, **more: recalls.append(more["recall"]) or searched(*args, **more)
  monkeypatch.setattr(shortlists, "search", recorded)
  np.testing.assert_array_equal(refresh.shortlist(queries, labels, 5), exact)  # no TPU: all are found
  assert recalls == [0.95]
  refresh.shortlist(queries, labels, 5, backend="exact")
  assert len(recalls) == 1
