"""Indexes and shortlists: built once, tuned for each k, nearly exact, and exact where they must be."""

import concurrent.futures
import importlib.util
import os
import re
import sys

import jax
import numpy as np
import pytest
import scipy.sparse as sp

from xmc_jax import methods, refresh
from xmc_jax.config.defaults import keys_of
from xmc_jax.distributed import runtime, sharding
from xmc_jax.errors import ConfigError
from xmc_jax.retrieval import Index, index, shortlists
from xmc_jax.retrieval.search import Ranking, contained

K = 20
BACKEND = pytest.mark.parametrize("backend", ["exact", "scann"])
# What is not marked holds for exact search, too, which then takes ScaNN's place.
NEEDS_SCANN = pytest.mark.skipif(importlib.util.find_spec("scann") is None, reason="needs ScaNN")


def clustered(num_queries, num_labels, dim=16, centres=200):
  """`[N, D]` queries and `[L, D]` labels: unit vectors about common centres."""
  rng = np.random.default_rng(0)
  middles = rng.standard_normal((centres, dim))

  def drawn(count):
    vectors = middles[rng.integers(0, centres, count)] + 0.7 * rng.standard_normal((count, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

  return drawn(num_queries), drawn(num_labels)


def by_hand(queries, labels, k, exclude=None):
  """Ids by a full sort, padded."""
  scores = queries @ labels.T
  if exclude is not None:
    scores[exclude.toarray()] = -np.inf
  ids = np.argsort(-scores, axis=1, kind="stable")[:, :k]
  ids = np.where(np.isfinite(np.take_along_axis(scores, ids, 1)), ids, -1)
  return np.pad(ids, ((0, 0), (0, k - ids.shape[1])), constant_values=-1)


def overlap(found, expected):
  """The part of `expected` that stands in `found`, row by row."""
  both = [np.intersect1d(a[a >= 0], b[b >= 0]).size for a, b in zip(found, expected)]
  return sum(both) / np.sum(expected >= 0)


@pytest.fixture(autouse=True)
def builds(monkeypatch):
  """The sizes of the indexes that were built; what is said once is said once a test."""
  made, build = [], index._build
  monkeypatch.setattr(index, "_build", lambda labels, k: made.append(labels.shape) or build(labels, k))
  index._load.cache_clear()
  yield made
  index._load.cache_clear()


@pytest.fixture(scope="module")
def vectors():
  return clustered(300, 3000)


def assert_right(found, queries, labels, k, exclude=None):
  """Nearly all of the nearest, best first, with their inner products as scores; none that is excluded."""
  expected = by_hand(queries, labels, k, exclude)
  assert found.ids.shape == found.scores.shape == expected.shape
  assert found.ids.dtype == np.int32 and found.scores.dtype == np.float32
  np.testing.assert_array_equal(found.ids >= 0, expected >= 0)
  products = np.take_along_axis(queries @ labels.T, np.maximum(found.ids, 0), axis=1)
  products = np.where(found.ids >= 0, products, -np.inf)
  np.testing.assert_allclose(found.scores, products, rtol=0, atol=1e-5)
  assert np.all(found.scores[:, 1:] <= found.scores[:, :-1])
  for row in found.ids:
    assert len(set(row[row >= 0])) == np.sum(row >= 0)
  assert overlap(found.ids, expected) >= index.RECALL
  if exclude is not None:
    assert not contained(found.ids, exclude).any()


def near_ones_excluded(queries, labels, count):
  """CSR of the `count` nearest of every second row; of the first, all labels but three."""
  nearest = by_hand(queries, labels, count)
  rows = [row if number % 2 else row[:0] for number, row in enumerate(nearest)]
  rows[0] = np.arange(3, len(labels))
  indptr = np.cumsum([0, *map(len, rows)])
  ids = np.concatenate([np.sort(row) for row in rows])
  return sp.csr_matrix((np.ones(len(ids), bool), ids, indptr), (len(queries), len(labels)))


def test_backends_are_those_of_the_config():
  keys = keys_of(methods.SETTINGS["ance"])
  for key in ("eval.backend", "method.shortlist_backend"):
    assert set(keys[key].choices) == set(index.BACKENDS)


@NEEDS_SCANN
def test_it_is_built_once_and_tuned_for_each_k(vectors, builds, capfd):
  queries, labels = vectors
  made = Index(labels, backend="scann", name="ranking")
  for k in (5, 100, 5, 1, 20):
    assert_right(made.search(queries, k), queries, labels, k)
  assert_right(made.search(queries[:1], 5), queries[:1], labels, 5)
  assert builds == [labels.shape]
  said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("ranking by ScaNN: ")]
  assert [line.partition("recall@")[2].split()[0] for line in said] == ["10", "100", "20"]
  assert ["built in" in line for line in said] == [True, False, False]


@pytest.mark.parametrize("devices", [None, (2, 2)])
def test_excluded_pairs_are_left_out(vectors, devices):
  queries, labels = vectors
  exclude = near_ones_excluded(queries, labels, 30)
  made = Index(labels, backend="scann", devices=devices and sharding.make(*devices))
  assert_right(made.search(queries, K), queries, labels, K)
  found = made.search(queries, K, exclude=exclude)
  assert_right(found, queries, labels, K, exclude)
  assert found.ids[0, 3:].tolist() == [-1] * (K - 3) and np.all(found.scores[0, 3:] == -np.inf)


def test_as_many_as_there_are_labels(vectors):
  queries, labels = vectors[0][:60], vectors[1][:1200]
  made = Index(labels, backend="scann")
  for k in (K, len(labels)):
    assert_right(made.search(queries, k), queries, labels, k)
  with pytest.raises(ValueError):
    made.search(queries, len(labels) + 1)


@NEEDS_SCANN
def test_a_handful_is_searched_exactly_and_is_part_of_the_sample(vectors, builds):
  queries, labels = vectors
  made = Index(labels, backend="scann", patience=50)
  exclude = near_ones_excluded(queries, labels, 3)
  for start in range(0, 40, 10):
    rows = slice(start, start + 10)
    out = exclude[rows] if start else None
    found = made.search(queries[rows], K, exclude=out)
    np.testing.assert_array_equal(found.ids, by_hand(queries[rows], labels, K, out))
  assert not builds
  assert_right(made.search(queries[40:55], K), queries[40:55], labels, K)
  assert builds == [labels.shape]
  sample, pairs = made._sample
  np.testing.assert_array_equal(sample, queries[:55])
  assert (pairs != sp.vstack([exclude[:10] * 0, exclude[10:40], exclude[40:55] * 0])).nnz == 0


@NEEDS_SCANN
def test_auto_counts_the_queries_of_all_calls(vectors, builds, monkeypatch):
  queries, labels = vectors
  monkeypatch.setattr(index, "_SCANN_LABELS", 3000)
  monkeypatch.setattr(index, "_SCANN_QUERIES", 10)  # 160 of them
  made = Index(labels)
  for start, built in ((0, 0), (100, 1), (200, 1)):
    assert_right(made.search(queries[start : start + 100], K), queries[start : start + 100], labels, K)
    assert len(builds) == built
  assert len(made._sample[0]) == 200


@NEEDS_SCANN
def test_auto_searches_exactly_what_scann_cannot_be_tuned_for(vectors, builds, monkeypatch, capfd, tmp_path):
  queries, labels = vectors
  monkeypatch.setattr(index, "_SCANN_LABELS", 3000)
  monkeypatch.setattr(index, "_SCANN_QUERIES", 1)
  monkeypatch.setattr(index, "_LEAF_FRACTIONS", (0.02,))
  made = Index(labels)
  for _ in range(2):
    found = made.search(queries, K)
    np.testing.assert_array_equal(found.ids, by_hand(queries, labels, K))
  said = capfd.readouterr().err
  assert said.count("less than 0.95: searching exactly instead") == 1  # found out once
  assert len(builds) == 1
  assert made.save(tmp_path / "scann") is None and not (tmp_path / "scann").exists()
  forced = Index(labels, backend="scann")
  assert overlap(forced.search(queries, K).ids, by_hand(queries, labels, K)) < 0.95
  assert "less than 0.95: backend 'exact' would miss nothing" in capfd.readouterr().err


@NEEDS_SCANN
def test_the_same_calls_give_the_same_and_threads_build_once(vectors, builds):
  queries, labels = vectors
  blocks = [queries[start : start + 100] for start in (0, 100, 200)]
  one, other = (Index(labels, backend="scann") for _ in range(2))
  for block in blocks:
    for a, b in zip(one.search(block, K), other.search(block, K)):
      np.testing.assert_array_equal(a, b)
  made = Index(labels, backend="scann")
  with concurrent.futures.ThreadPoolExecutor(3) as pool:
    found = list(pool.map(lambda block: made.search(block, K), blocks))
  # It is tuned by the block that comes first; of all three, whichever that was, it finds enough.
  joined = Ranking(*(np.concatenate(arrays) for arrays in zip(*found)))
  assert_right(joined, np.concatenate(blocks), labels, K)
  assert len(builds) == 3


@NEEDS_SCANN
def test_what_scann_notes_of_itself_is_not_shown(vectors, capfd):
  queries, labels = vectors
  Index(labels, backend="scann").search(queries, K)
  assert ".cc:" not in capfd.readouterr().err
  with runtime.notes_left_out():
    os.write(2, b"I0000 00:00:17.1 1 partitioner.cc:58] Size of sampled dataset\nE0000 broken\nours\n")
  assert capfd.readouterr().err == "E0000 broken\nours\n"


def test_without_scann_it_is_exact_and_says_so_once(vectors, builds, capfd, monkeypatch):
  monkeypatch.setitem(sys.modules, "scann", None)  # import raises
  queries, labels = vectors
  made = Index(labels, backend="scann")
  for k in (5, K):
    np.testing.assert_array_equal(made.search(queries, k).ids, by_hand(queries, labels, k))
  assert capfd.readouterr().err.count("exact without ScaNN") == 1 and not builds


@pytest.mark.parametrize("reason", ["exact", "few labels", "labels", "queries", "none"])
def test_where_it_is_exact(vectors, builds, reason):
  queries, labels = (table.copy() for table in vectors)
  if reason == "few labels":
    labels = labels[: index._SMALLEST - 1]
  if reason == "labels":
    labels[7, 3] = np.inf
  if reason == "queries":
    queries[7, 3] = np.nan
  queries = queries[:0] if reason == "none" else queries
  found = Index(labels, backend="exact" if reason == "exact" else "scann").search(queries, K)
  assert found.ids.shape == (len(queries), K) and not builds
  if reason in ("exact", "few labels"):
    np.testing.assert_array_equal(found.ids, by_hand(queries, labels, K))


@NEEDS_SCANN
@pytest.mark.parametrize("backend, built", [("auto", 0), ("scann", 1)])
def test_one_of_several_processes(vectors, builds, backend, built, monkeypatch):
  monkeypatch.setattr(runtime, "is_alone", lambda: False)
  monkeypatch.setattr(index, "_choose", lambda *sizes: "scann")
  queries, labels = vectors
  made = Index(labels, backend=backend, devices=sharding.make(1, 2))
  assert_right(made.search(queries, K), queries, labels, K)
  assert len(builds) == built and (made._devices is None) == bool(built)


@pytest.mark.parametrize("sizes", [[10] * 400, [3000, 200], [1, 3999]], ids=str)
def test_the_sample_is_drawn_from_all_queries_alike(sizes):
  """Whatever calls they come in; 200 of each set, so that a half is off by 7 at the standard deviation."""
  made = Index(np.eye(2, dtype=np.float32), backend="auto")
  numbers = np.arange(sum(sizes), dtype=np.float32)
  for part in np.split(numbers, np.cumsum(sizes)[:-1]):
    made.search(np.stack([part, part], axis=1), 1)
  found = made._sample[0][:, 0]
  assert len(found) == len(set(found)) == 200
  assert abs(np.sum(found < sum(sizes) / 2) - 100) < 30


# --- shortlists ---


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
