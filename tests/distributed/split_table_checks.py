"""Checks, in each of several processes, tables that are split over them: NUMBER COUNT PORT FOLDER."""

import pathlib
import sys
import time

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from jax.sharding import NamedSharding, PartitionSpec

from xmc_jax.distributed import runtime, sharding, split_table
from xmc_jax.distributed.split_table import SplitTable
from xmc_jax.refresh import balanced_clusters, kept_edges, label_centroids, shortlist
from xmc_jax.retrieval.fusion import Fusion
from xmc_jax.retrieval.index import Index
from xmc_jax.storage import npy, run_folder


def split(array: np.ndarray) -> SplitTable:
  own = split_table.own_range(len(array))
  return SplitTable(array[own.start : own.stop].copy(), split_table.row_starts(len(array)))


def rows_are_those_of_the_whole_table(rng) -> None:
  array = rng.normal(size=(5003, 16)).astype(np.float32)
  array[3, 2], array[4, 1], array[5, 0] = np.nan, -0.0, np.inf
  table, ids = split(array), rng.integers(0, len(array), 300)
  subset = np.arange(5, 5000, 7)
  found = [table[:], table[ids], table.take(subset)[:], table.take(subset)[ids % 700]]
  wanted = [array, array[ids], array[subset], array[subset][ids % 700]]
  for one, other in zip(found + [table.map(lambda rows: rows[:, 3:])[:]], wanted + [array[:, 3:]]):
    assert one.tobytes() == np.ascontiguousarray(other).tobytes()
  assert not len(table[np.zeros(0, int)])
  for wrong in (np.s_[:, :3], np.ones(len(array), bool), 3):
    with pytest.raises(TypeError, match="by a slice or by numbers"):
      table[wrong]
  for wrong in (-1, len(array)):
    with pytest.raises(IndexError, match=f"row {wrong} of a table of 5,003 rows"):
      table[np.array([3, wrong])]


def processes_without_rows_take_part(rng) -> None:
  """In as many blocks as the others."""
  array = rng.normal(size=(4001, 16)).astype(np.float32)
  table, last = split(array), np.arange(3960, 4000)
  before, split_table._BLOCK_BYTES = split_table._BLOCK_BYTES, 600
  few = table.take(last)
  assert len(few.own) == (40 if jax.process_index() == jax.process_count() - 1 else 0)
  np.testing.assert_array_equal(few[:], array[last])
  np.testing.assert_array_equal(few[np.arange(39, 0, -1)], array[last][:0:-1])
  np.testing.assert_array_equal(few.gather(last[: len(few.own)].astype(np.int32)), last)
  found = balanced_clusters(few, 128, key=jax.random.key(0))  # more clusters than rows
  np.testing.assert_array_equal(found, balanced_clusters(array[last], 128, key=jax.random.key(0)))
  split_table._BLOCK_BYTES = before


def devices_get_their_rows(rng, mesh) -> None:
  array = rng.normal(size=(101, 8)).astype(np.float32)
  for axes in ("label", ("label", "data"), None):
    placed = split(array).placed(NamedSharding(mesh, PartitionSpec(axes)), 108)
    for shard in placed.addressable_shards:
      np.testing.assert_array_equal(shard.data, np.pad(array, ((0, 7), (0, 0)))[shard.index])


def searches_find_the_same(rng, mesh) -> None:
  queries, labels = (rng.normal(size=(count, 8)).astype(np.float32) for count in (1101, 1203))
  exclude = sp.random(1101, 1203, 0.01, "csr", np.float32, rng)
  alone = Index(labels, backend="exact").search(queries, 10, exclude)
  found = Index(split(labels), backend="exact", devices=mesh).search(split(queries), 10, exclude)
  np.testing.assert_array_equal(found.ids, alone.ids)
  np.testing.assert_allclose(found.scores, alone.scores, rtol=1e-6)
  for backend in ("auto", "scann"):
    near = shortlist(split(queries), split(labels), 10, backend=backend, exclude=exclude, devices=mesh)
    if backend == "auto":
      np.testing.assert_array_equal(near, alone.ids)
    assert np.mean([np.isin(one, other).mean() for one, other in zip(near, alone.ids)]) > 0.94
  inverse_propensity = np.ones(len(labels))
  whole, parts = (
    Fusion(kind(labels), kind(labels[:, ::-1].copy()), inverse_propensity, num_candidates=20, devices=mesh)
    for kind in (np.asarray, split)
  )
  np.testing.assert_array_equal(parts.rank(queries[:70], 5).ids, whole.rank(queries[:70], 5).ids)


def centroids_and_edges_are_the_same(rng) -> None:
  points, texts = (rng.normal(size=(count, 8)).astype(np.float32) for count in (501, 203))
  truth = sp.random(501, 203, 0.005, "csr", np.float32, rng)
  assert (truth.getnnz(axis=0) == 0).any()
  found = label_centroids(split(points), truth, lambda: split(texts))
  np.testing.assert_allclose(found[:], label_centroids(points, truth, lambda: texts), atol=1e-6)
  points /= np.linalg.norm(points, axis=1, keepdims=True)
  anchors = texts / np.linalg.norm(texts, axis=1, keepdims=True)
  edges = sp.random(501, 203, 0.05, "csr", np.float32, rng).astype(bool)
  for centred in (False, True):
    kept, done = kept_edges(edges, points, anchors, centred=centred), []
    assert 0 < kept.sum() < len(kept)
    parts = kept_edges(edges, split(points), anchors, centred=centred, progress=done.append)
    np.testing.assert_array_equal(parts, kept)
    assert done[-1] == edges.nnz


def clusters_are_as_good(rng) -> None:
  """They may differ where two vectors are equally far along a direction, by rounding."""
  centres = rng.normal(size=(16, 8))
  points = (centres[rng.integers(0, 16, 3001)] + 0.3 * rng.normal(size=(3001, 8))).astype(np.float32)
  points[::100] *= 1e-3  # their lengths do not count
  for number in (1, 2, 8, 64):  # each halving is a program, and takes a second to compile
    alone, found = (
      balanced_clusters(kind(points), number, key=jax.random.key(3)) for kind in (np.asarray, split)
    )
    assert np.mean(found == alone) > 0.99, (number, np.mean(found == alone))
    sizes = np.bincount(found, minlength=number)
    assert sizes.max() - sizes.min() <= 1
    assert (split_table.sum_over_processes(found) == jax.process_count() * found).all()  # alike everywhere
  assert not len(balanced_clusters(split(points[:0]), 8, key=jax.random.key(3)))
  points[7] = np.nan
  with pytest.raises(ValueError, match="NaN or infinity in 1 rows"):
    balanced_clusters(split(points), 8, key=jax.random.key(3))


def files_are_written_whole(rng, path) -> None:
  array = rng.normal(size=(501, 203)).astype(np.float32)
  run_folder.save_array(path / "table.npy", split(array))
  np.testing.assert_array_equal(npy.read(path / "table.npy", 501), array)


def the_main_process_goes_first(path) -> None:
  with runtime.main_process_first("first"):
    if runtime.is_main_process():
      time.sleep(1)
      (path / "first").touch()
    assert (path / "first").exists()


def main() -> None:
  number, count, port, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], pathlib.Path(sys.argv[4])
  jax.distributed.initialize(f"localhost:{port}", count, number)
  mesh = sharding.make(count, 2)
  rows_are_those_of_the_whole_table(np.random.default_rng(0))
  processes_without_rows_take_part(np.random.default_rng(6))
  devices_get_their_rows(np.random.default_rng(1), mesh)
  searches_find_the_same(np.random.default_rng(2), mesh)
  centroids_and_edges_are_the_same(np.random.default_rng(3))
  clusters_are_as_good(np.random.default_rng(4))
  files_are_written_whole(np.random.default_rng(5), folder)
  the_main_process_goes_first(folder)


if __name__ == "__main__":
  main()
