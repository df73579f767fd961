"""Batches: a function of (seed, step), every row once an epoch, columns that mean what they say."""

import concurrent.futures
import math
import threading
from types import MappingProxyType

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from made_builders import assert_texts, builder_of, truth_of_counts

from xmc_jax.batching.builder import prefetch
from xmc_jax.data.dataset import unfiltered
from xmc_jax.types import BatchSpec

N, L, B = 50, 37, 16
ALL, IN_BATCH = BatchSpec(labels="all"), BatchSpec(labels="in_batch")


def _builder(spec=IN_BATCH, *, num_points=N, num_labels=L, most=4, seed=3, filtered=2, **options):
  rng = np.random.default_rng(seed)
  truth, excluded = (
    truth_of_counts(rng.integers(0, min(most, num_labels) + 1, num_points), num_labels, seed)
    for most in (most, filtered)
  )
  lengths, label_lengths = rng.integers(0, 40, num_points), rng.integers(1, 20, num_labels)
  options = {"batch_size": B, "max_length": 32, "seed": 5} | options
  return builder_of(truth, spec, lengths, excluded.astype(bool), label_lengths, **options)


def _columns(builder, batch):
  return builder.label_columns if not len(batch.columns) else batch.columns


def _epochs(builder, number=1, refreshed=MappingProxyType({})):
  """Yields the batches of the first epochs."""
  return (builder.build(step, refreshed) for step in range(number * builder.steps_per_epoch))


def _real_rows(batch):
  """Yields `(row, positives, weights)` of the rows that are no padding."""
  return (each for each in zip(batch.rows, batch.positives, batch.weights) if each[0] >= 0)


def _assert_same(a, b):
  for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert left.dtype == right.dtype
    np.testing.assert_array_equal(left, right)


def _pool(batch):
  return set(batch.columns[batch.columns >= 0].tolist())


def _to_labels(columns, ids):
  """Column numbers back to label ids, as a set; -1 left out."""
  return {int(columns[column]) for column in ids if column >= 0}


def _sampled(batch):
  """The labels of a pool that were sampled as positives."""
  return _to_labels(batch.columns, batch.positives[batch.weights > 0])


SPECS = [
  BatchSpec(labels, positives, negatives)
  for labels, negatives in (("all", 0), ("in_batch", 0), ("in_batch", 5))
  for positives in (1, 3, 0)
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_batch_is_a_function_of_seed_and_step(spec):
  one, other = _builder(spec), _builder(spec)
  forwards = [one.build(step) for step in range(9)]
  backwards = [other.build(step) for step in reversed(range(9))][::-1]
  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    threaded = list(pool.map(one.build, range(9)))
  for step in range(9):
    _assert_same(forwards[step], backwards[step])
    _assert_same(forwards[step], threaded[step])
  changed = _builder(spec, seed=6).build(0)
  assert not np.array_equal(changed.rows, forwards[0].rows)
  shapes = {tuple(leaf.shape for leaf in jax.tree.leaves(batch)) for batch in forwards}
  assert len(shapes) == 1


def test_epochs_differ_and_hold_each_row_with_labels_once():
  builder = _builder()
  with_labels = np.flatnonzero(np.diff(builder._truth.indptr))
  assert len(with_labels) < N and list(builder.rows) == list(with_labels)
  assert builder.steps_per_epoch == -(-len(with_labels) // B)
  orders = []
  for epoch in range(3):
    first = epoch * builder.steps_per_epoch
    rows = np.concatenate([builder.build(first + step).rows for step in range(builder.steps_per_epoch)])
    assert sorted(rows[rows >= 0]) == list(with_labels)
    orders.append(builder.epoch_order(epoch).tolist())
  assert len(set(map(tuple, orders))) == 3


def test_clusters_stand_together_in_a_new_order_each_epoch():
  builder = _builder()
  clusters = np.arange(N, dtype=np.int32) % 5
  orders = [builder.epoch_order(epoch, clusters) for epoch in range(4)]
  for order in orders:
    assert sorted(order) == sorted(builder.rows)  # every row once
    found = clusters[order]
    assert np.sum(found[1:] != found[:-1]) == 4  # five runs of one leaf each
  assert len({tuple(dict.fromkeys(clusters[order].tolist())) for order in orders}) > 1
  within = [tuple(order[clusters[order] == 0]) for order in orders]
  assert len(set(within)) > 1
  for step in (1, builder.steps_per_epoch + 1):
    rows = builder.build(step, {"clusters": clusters}).rows
    epoch = step // builder.steps_per_epoch
    assert sorted(rows[rows >= 0]) == sorted(orders[epoch][B : 2 * B])


def test_new_clusters_are_taken_up_at_once():
  builder = _builder(batch_size=8)
  one, other = np.zeros(N, np.int32), np.arange(N, dtype=np.int32) % 2
  builder.build(0, {"clusters": one})
  rows = builder.build(0, {"clusters": other}).rows
  assert len(set(other[rows])) == 1  # the leaf has more than 8 rows


FROZEN = BatchSpec(labels="in_batch_table", num_positives=0, frozen=True)


def test_a_frozen_batch_has_vectors_and_no_texts():
  builder = _builder(FROZEN)
  builder.vectors = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
  for batch in _epochs(builder):
    assert batch.queries == batch.labels == ()
    for row, vector, positives in zip(batch.rows, batch.vectors, batch.positives):
      np.testing.assert_array_equal(vector, builder.vectors[row] if row >= 0 else np.zeros(3))
      true = set(builder._truth[row].indices.tolist()) if row >= 0 else set()
      assert _to_labels(batch.columns, positives) == true  # all positives of the batch are columns
    columns = batch.columns[batch.columns >= 0]
    assert len(set(columns)) == len(columns) and len(batch.columns) % 128 == 0


def test_a_frozen_pool_grows_where_a_batch_needs_it():
  rows = np.repeat(np.arange(1000), [1] * 992 + [200] * 8)
  truth = sp.csr_matrix((np.ones(len(rows), np.float32), (rows, np.arange(len(rows)))), (1000, len(rows)))
  builder = builder_of(truth, FROZEN)
  builder.vectors = np.zeros((1000, 2), np.float32)
  usual = len(builder.build(3).columns)
  clusters = (np.arange(1000) >= 992).astype(np.int32)  # the long rows together
  found = list(_epochs(builder, refreshed={"clusters": clusters}))
  sizes = {len(batch.columns) for batch in found}
  assert min(sizes) == usual and max(sizes) > 1600 // 2 and all(size % usual == 0 for size in sizes)
  assert sum(np.sum(batch.columns >= 0) for batch in found) == len(rows)


@pytest.mark.parametrize("spec", [ALL, IN_BATCH], ids=str)
def test_padding_rows_carry_nothing(spec):
  builder = _builder(spec)
  batch = builder.build(builder.steps_per_epoch - 1)
  padding = batch.rows < 0
  assert padding.sum() == builder.steps_per_epoch * B - len(builder.rows) > 0
  assert np.all(batch.positives[padding] == -1) and np.all(batch.weights[padding] == 0)
  assert np.all(batch.excluded[padding] == -1)
  lengths = np.concatenate([group.lengths for group in batch.queries])
  assert np.all(lengths[padding] == 0)


@pytest.mark.parametrize("data_axis", [1, 4])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_rows_stand_beside_their_own_tokens_as_the_devices_hold_them(spec, data_axis):
  builder = _builder(spec, data_axis=data_axis)
  for batch in _epochs(builder):
    assert_texts(batch.queries, builder._queries, batch.rows, data_axis)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_sampled_positives_are_true_and_their_weights_add_up_to_one(spec):
  builder = _builder(spec)
  for batch in _epochs(builder, 2):
    columns = _columns(builder, batch)
    for row, positives, weights in _real_rows(batch):
      true = set(builder._truth[row].indices.tolist())
      sampled = _to_labels(columns, positives[weights > 0])
      assert sampled <= true and np.all(positives[weights > 0] >= 0)
      assert len(sampled) == np.sum(weights > 0) == min(spec.num_positives or len(true), len(true))
      assert weights.sum() == pytest.approx(1) and len(set(weights[weights > 0].tolist())) == 1
      # Every true label of the pool is marked, sampled or not: it must stay out of the denominator.
      assert _to_labels(columns, positives) == true & set(columns[columns >= 0].tolist())


def _rows_alike(relevances):
  """The truth of 200 points with the same labels."""
  row = np.zeros(L, np.float32)
  row[list(relevances)] = list(relevances.values())
  return sp.csr_matrix(np.tile(row, (200, 1)))


def test_positives_are_sampled_by_weight():
  truth, label_weights = _rows_alike({2: 1, 8: 1}), np.arange(L) + 1.0
  builder = builder_of(truth, IN_BATCH, batch_size=200, label_weights=label_weights)
  sampled = np.concatenate(
    [batch.columns[batch.positives[batch.weights > 0]] for batch in _epochs(builder, 10)]
  )
  assert len(sampled) == 2000 and set(sampled.tolist()) == {2, 8}
  assert abs(np.sum(sampled == 8) - 1500) < 5 * 2000**0.5 * (3 / 16) ** 0.5  # sampling_weights of 9 to 3


@pytest.mark.parametrize("spec", [IN_BATCH, IN_BATCH._replace(num_positives=0)])
def test_relevances_are_weights_on_average(spec):
  """One positive is sampled in proportion to them; where all count, they are the weights."""
  builder = builder_of(_rows_alike({2: 0.5, 8: 1.5}), spec, batch_size=200, by_relevance=True)
  total = np.zeros(L)
  for batch in _epochs(builder, 10):
    some = batch.weights > 0
    np.add.at(total, batch.columns[batch.positives[some]], batch.weights[some])
  np.testing.assert_allclose(total[[2, 8]] / 2000, [0.25, 0.75], atol=5 * (3 / 16 / 2000) ** 0.5)
  if not spec.num_positives:
    np.testing.assert_allclose(np.unique(batch.weights[some]), [0.25, 0.75])


@pytest.mark.parametrize("negatives", [0, 5, 1000])
@pytest.mark.parametrize("positives", [1, 3, 0])
def test_a_pool_holds_the_sampled_positives_and_the_random_negatives(positives, negatives):
  builder = _builder(BatchSpec("in_batch", positives, negatives))
  for batch in _epochs(builder):
    pool, sampled = _pool(batch), _sampled(batch)
    assert len(pool) == np.sum(batch.columns >= 0) and sampled <= pool
    assert len(pool) - len(sampled) == min(negatives, L - len(sampled))
    assert_texts(batch.labels, builder._labels, batch.columns)


def test_random_negatives_come_from_everywhere():
  builder = _builder(BatchSpec("in_batch", 1, 5))
  seen = set()
  for step in range(100):
    seen |= set(builder.build(step).columns.tolist())
  assert seen - {-1} == set(range(L))


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_excluded_pairs_are_mapped(spec):
  builder = _builder(spec)
  found = 0
  for batch in _epochs(builder):
    columns = _columns(builder, batch)
    for row, excluded in zip(batch.rows, batch.excluded):
      if row >= 0:
        expected = set(builder._excluded[row].indices.tolist()) & set(columns.tolist())
        assert _to_labels(columns, excluded) == expected
        found += len(expected)
  assert found > 0


def test_a_pair_that_is_true_and_excluded_is_no_positive():
  truth = sp.csr_matrix(np.array([[1, 1, 0], [0, 1, 0], [0, 0, 1]], np.float32))
  excluded = sp.csr_matrix(np.array([[1, 0, 0], [0, 1, 0], [1, 0, 0]], bool))
  builder = builder_of(truth, ALL, excluded=excluded, batch_size=2)
  assert builder.rows.tolist() == [0, 2]  # row 1 has nothing else
  batch = builder.build(0)
  for row, positives, weights in _real_rows(batch):
    assert _to_labels(builder.label_columns, positives) == ({1} if row == 0 else {2})
    assert weights.sum() == 1
  left = unfiltered(truth, excluded).toarray().tolist()
  assert truth.nnz == 4 and left == [[0, 1, 0], [0, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize("axes", [(1, 1), (2, 1), (1, 4), (2, 4)])
def test_all_labels_stand_once_each_beside_their_texts(axes):
  builder = _builder(ALL, data_axis=axes[0], label_axis=axes[1])
  columns = builder.label_columns
  assert sorted(columns[columns >= 0]) == list(range(L))
  assert_texts(builder.label_groups, builder._labels, columns, axes[0] * axes[1])


def test_a_table_has_a_column_for_each_label_and_no_texts():
  builder = _builder(BatchSpec("table"), label_axis=4)
  assert builder.label_columns.tolist() == [*range(L), *[-1] * (-L % 4)] and builder.label_groups == ()
  batch = builder.build(0)
  for row, positives, _ in _real_rows(batch):
    assert _to_labels(builder.label_columns, positives) == set(builder._truth[row].indices.tolist())


def _shortlist(builder, width, seed=0):
  """Labels that are not true, `[N, width]`; every third row has but two of them."""
  rng, listed = np.random.default_rng(seed), np.full((N, width), -1, np.int32)
  for row in range(N):
    others = np.setdiff1d(np.arange(L), builder._truth[row].indices)
    count = 2 if row % 3 == 0 else width
    listed[row, :count] = rng.choice(others, count, replace=False)
  return listed


@pytest.mark.parametrize("num_random", [0, 2])
def test_hard_negatives_come_from_the_rows_own_shortlists(num_random):
  builder = _builder(BatchSpec("in_batch", 1, num_random, num_hard_negatives=3))
  listed = _shortlist(builder, 6)
  seen = set()
  for batch in _epochs(builder, 20, {"shortlist": listed}):
    pool, rows = _pool(batch), batch.rows[batch.rows >= 0]
    for row in rows:
      own = set(listed[row].tolist()) - {-1}
      assert len(own & pool) >= min(3, len(own))
      seen |= {(row, label) for label in own & pool}
    assert len(pool - _sampled(batch) - set(listed[rows].ravel().tolist())) <= num_random
  assert len(seen) == np.sum(listed[builder.rows] >= 0)  # all of them get their turn


def test_without_a_shortlist_the_pool_has_no_room_for_hard_negatives():
  plain, hard = (_builder(BatchSpec("in_batch", 1, 2, num_hard_negatives=count)) for count in (0, 2))
  for step in range(3):
    _assert_same(plain.build(step), hard.build(step))
  later = hard.build(0, {"shortlist": _shortlist(hard, 6)})
  assert len(later.columns) > len(hard.build(0).columns)


@pytest.mark.parametrize("spec", [ALL, IN_BATCH, BatchSpec("in_batch", 0, 3)], ids=str)
def test_a_batch_larger_than_the_data_and_a_single_label(spec):
  builder = _builder(spec, num_points=5, num_labels=1, most=1, filtered=0, batch_size=64)
  assert builder.steps_per_epoch == 1
  batch = builder.build(0)
  assert sorted(batch.rows[batch.rows >= 0]) == list(builder.rows) and len(batch.rows) == 64
  columns = _columns(builder, batch)
  assert list(columns[columns >= 0]) == [0]
  assert np.all(columns[batch.positives[batch.rows >= 0, 0]] == 0)


def test_a_batch_that_fits_no_slot_is_laid_out_widest():
  truth, lengths = sp.csr_matrix(np.ones((1000, 1), np.float32)), np.array([4] * 900 + [32] * 100)
  builder = builder_of(truth, ALL, lengths, batch_size=32, max_length=32)
  assert len(builder.build(0).queries) > 1
  batches = _epochs(builder, refreshed={"clusters": (np.arange(1000) >= 900).astype(np.int32)})
  batch = next(batch for batch in batches if batch.rows.min() >= 900)  # 32 long texts at once
  assert [group.ids.shape for group in batch.queries] == [(32, 32)]


# --- pools of fixed size, and clusters as batches (UniDEC) ---


@pytest.mark.parametrize("size", [1, 7, 12, 20, 30])
def test_a_full_pool_drops_hard_negatives_first_and_counts(size):
  spec = BatchSpec("in_batch", 1, num_hard_negatives=3, pool_size=size)
  builder, free = _builder(spec), _builder(spec._replace(pool_size=0))
  listed = _shortlist(builder, 6)
  kinds = set()
  for step in range(3 * builder.steps_per_epoch):
    batch, whole = builder.build(step, {"shortlist": listed}), free.build(step, {"shortlist": listed})
    sampled = _sampled(whole)
    hard, pool = _pool(whole) - sampled, _pool(batch)
    assert pool <= sampled | hard and len(pool) == min(size, len(sampled | hard))
    negatives, positives = batch.dropped.tolist()
    assert positives == len(sampled - pool) == max(0, len(sampled) - size)
    assert negatives == len(hard - pool) and (not positives or negatives == len(hard))
    kinds.add((negatives > 0, positives > 0))
    for weights in batch.weights:
      assert weights.sum() == 0 or weights.sum() == pytest.approx(1)
  assert len(batch.columns) == size and whole.dropped == ()
  drops = {1: (True, True), 7: (True, True), 12: (True, False), 20: (True, False), 30: (False, False)}
  assert drops[size] in kinds


def test_what_is_dropped_is_not_always_the_same():
  builder = _builder(BatchSpec("in_batch", 1, num_hard_negatives=3, pool_size=14), batch_size=48)
  listed = _shortlist(builder, 6)
  pools = [frozenset(_pool(builder.build(step, {"shortlist": listed}))) for step in range(20)]
  assert len(set(pools)) > 10


def test_random_labels_fill_what_room_a_pool_has():
  builder = _builder(BatchSpec("in_batch", 1, num_random_negatives=25, num_hard_negatives=1, pool_size=25))
  for step in range(builder.steps_per_epoch):
    for lists in ({}, {"shortlist": _shortlist(builder, 6)}):  # before there are lists, and after
      batch = builder.build(step, lists)
      assert len(_pool(batch)) == 25 and batch.dropped.tolist() == [0, 0]


def test_without_hard_negatives_other_positives_fill_the_pool():
  builder = _builder(BatchSpec("in_batch", 1, pool_size=25, fill_pool=True), most=6)
  plain = _builder(BatchSpec("in_batch", 1), most=6)
  for step in range(builder.steps_per_epoch):
    batch = builder.build(step)
    true = set(builder._truth[batch.rows[batch.rows >= 0]].indices.tolist())
    assert _pool(batch) <= true and len(_pool(batch)) == min(25, len(true)) == len(true & _pool(batch))
    assert len(_pool(batch)) > len(_pool(plain.build(step)))
    assert batch.dropped.tolist() == [0, 0]


@pytest.mark.parametrize("data_axis", [1, 4])
@pytest.mark.parametrize("num_points, batch_size", [(50, 16), (50, 64), (7, 4), (1, 4), (64, 8), (3, 1)])
def test_a_cluster_is_a_batch(num_points, batch_size, data_axis):
  spec = BatchSpec("in_batch", 1, batch_is_cluster=True)
  builder = _builder(spec, num_points=num_points, batch_size=batch_size, data_axis=data_axis, filtered=1)
  steps, rng = builder.steps_per_epoch, np.random.default_rng(0)
  assert steps == max(1, 2 ** math.ceil(math.log2(len(builder.rows) / batch_size)))
  clusters = np.full(num_points, -1, np.int32)
  clusters[builder.rows] = rng.permutation(len(builder.rows)) % steps
  orders = []
  for epoch in range(3):
    batches = [builder.build(epoch * steps + step, {"clusters": clusters}) for step in range(steps)]
    rows = [set(batch.rows[batch.rows >= 0].tolist()) for batch in batches]
    assert sorted(map(sorted, rows)) == sorted(
      sorted(np.flatnonzero(clusters == leaf).tolist()) for leaf in range(steps)
    )
    rows_of_each = max(1, -(-len(builder.rows) // (steps * data_axis))) * data_axis
    assert {len(batch.rows) for batch in batches} == {rows_of_each}
    orders.append([clusters[min(members)] for members in rows if members])
  assert steps < 4 or orders[0] != orders[1] or orders[1] != orders[2]
  before = [builder.build(step).rows for step in range(steps)]  # as large parts of a random order
  assert sorted(np.concatenate(before)[np.concatenate(before) >= 0]) == sorted(builder.rows)
  sizes = [np.sum(rows >= 0) for rows in before]
  assert max(sizes) - min(sizes) <= 1


def _threads():
  return [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


def test_ahead_keeps_the_order_and_its_distance():
  running = []

  def build(step):
    running.append(step)
    return step

  steps = prefetch(build, 2, 9, depth=3)
  assert next(steps) == 2
  assert list(steps) == list(range(3, 9)) and sorted(running) == list(range(2, 9))
  assert list(prefetch(build, 4, 4)) == []
  far = prefetch(build, 0, 1000, depth=2)
  running.clear()
  next(far)
  assert max(running) <= 2 and _threads()
  far.close()
  assert not _threads()


def test_ahead_passes_exceptions_on_and_stops_its_thread():
  def build(step):
    if step == 3:
      raise OSError("the disk is gone")
    return step

  seen = []
  with pytest.raises(OSError, match="the disk is gone"):
    for step in prefetch(build, 0, 10):
      seen.append(step)
  assert seen == [0, 1, 2] and not _threads()
