"""An index that is kept: built once, tuned for each k, nearly exact, and exact where it must be."""

import concurrent.futures
import importlib.util
import os
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from nearest_by_sort import by_hand, clustered, overlap

from xmc_jax import methods
from xmc_jax.config.defaults import keys_of
from xmc_jax.distributed import runtime, sharding
from xmc_jax.retrieval import Index, index
from xmc_jax.retrieval.search import Ranking, contained

K = 20
# What is not marked holds for exact search, too, which then takes ScaNN's place.
NEEDS_SCANN = pytest.mark.skipif(importlib.util.find_spec("scann") is None, reason="needs ScaNN")


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


@pytest.mark.parametrize("zero", [slice(8), slice(8, None)])
def test_vectors_that_are_zero_in_one_half(vectors, zero):
  """What ranks by one of two views."""
  queries, labels = vectors[0], vectors[1].copy()
  labels[:, zero] = 0
  assert_right(Index(labels, backend="scann").search(queries, K), queries, labels, K)


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
