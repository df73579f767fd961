"""Rows of different lengths: what is in them, and samples without replacement."""

import collections
import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse as sp

from xmc_jax.batching import ragged

COUNTS = st.lists(st.integers(0, 7), min_size=1, max_size=8)


@hypothesis.given(counts=COUNTS, number=st.integers(0, 9), seed=st.integers(0, 99), weighted=st.booleans())
def test_a_sample_takes_so_many_of_each_row_or_all(counts, number, seed, weighted):
  sampling_weights = np.random.default_rng(seed + 1).random(sum(counts)) + 1e-3 if weighted else None
  sampled = ragged.sample(np.array(counts), number, np.random.default_rng(seed), sampling_weights)
  assert sampled.shape == (sum(counts),) and sampled.dtype == bool
  taken = [part.sum() for part in np.split(sampled, np.cumsum(counts)[:-1])]
  assert taken == [min(number or count, count) for count in counts]


def test_every_subset_is_sampled_alike():
  generator = np.random.default_rng(0)
  seen = collections.Counter()
  for _ in range(300):
    sampled = ragged.sample(np.full(20, 4), 2, generator).reshape(20, 4)
    seen.update(map(tuple, sampled.tolist()))
  subsets = [tuple(place in chosen for place in range(4)) for chosen in itertools.combinations(range(4), 2)]
  assert set(seen) == set(subsets)
  assert all(abs(count - 1000) < 5 * 29 for count in seen.values())  # standard deviation 28.9


def test_weights_say_how_often_each_subset_is_sampled():
  """Two of three entries, one after the other: worked by hand for sampling_weights 1, 2, 5."""
  sampling_weights, generator = np.array([1.0, 2.0, 5.0]), np.random.default_rng(0)
  sampled = ragged.sample(np.full(40_000, 3), 2, generator, np.tile(sampling_weights, 40_000)).reshape(-1, 3)
  seen = collections.Counter(map(tuple, sampled.tolist()))
  for pair in ((0, 1), (0, 2), (1, 2)):
    one, other = sampling_weights[list(pair)]
    chance = one / 8 * other / (8 - one) + other / 8 * one / (8 - other)
    count = seen[tuple(place in pair for place in range(3))]
    assert abs(count - 40_000 * chance) < 5 * (40_000 * chance * (1 - chance)) ** 0.5


@hypothesis.given(counts=COUNTS, seed=st.integers(0, 99))
def test_one_of_each_row_that_has_some_is_sampled(counts, seed):
  sampling_weights = 10.0 ** np.random.default_rng(seed + 1).uniform(-6, 6, sum(counts))
  sampled = ragged.sample_one(
    np.array(counts), np.random.default_rng(seed), sampling_weights.astype(np.float32)
  )
  assert sampled.shape == (sum(counts),) and sampled.dtype == bool
  assert [part.sum() for part in np.split(sampled, np.cumsum(counts)[:-1])] == [
    min(1, count) for count in counts
  ]


def test_weights_say_how_often_the_one_is_sampled():
  """Odds 1, 2, 5 of a row of three; rows of one and of none stand between."""
  counts, sampling_weights = np.tile([3, 0, 1], 20_000), np.tile([1.0, 2.0, 5.0, 9.0], 20_000)
  sampled = ragged.sample_one(counts, np.random.default_rng(0), sampling_weights).reshape(-1, 4)
  assert sampled[:, 3].all() and np.all(sampled.sum(axis=1) == 2)
  chances = np.array([1, 2, 5]) / 8
  assert np.all(np.abs(sampled[:, :3].mean(axis=0) - chances) < 5 * np.sqrt(chances * (1 - chances) / 20_000))


@hypothesis.given(rows=st.lists(st.integers(-1, 5), max_size=8))
def test_rows_of_a_matrix(rows):
  dense = np.random.default_rng(1).random((6, 5)) < 0.5
  dense[2], dense[3] = False, True
  found = ragged.of_matrix(sp.csr_matrix(dense), np.array(rows, np.int32))
  expected = [np.flatnonzero(dense[row]).tolist() if row >= 0 else [] for row in rows]
  assert found.counts.tolist() == [len(row) for row in expected]
  assert found.values.tolist() == [label for row in expected for label in row]
  assert found.owners.tolist() == [owner for owner, row in enumerate(expected) for _ in row]


def test_padded_and_only():
  found = ragged.of_padded(np.array([[4, -1, 2], [-1, -1, -1], [7, 8, 9]], np.int32))
  assert found.values.tolist() == [4, 2, 7, 8, 9] and found.counts.tolist() == [2, 0, 3]
  np.testing.assert_array_equal(found.padded(3), [[4, 2, -1], [-1, -1, -1], [7, 8, 9]])
  kept = found.only(np.array([True, False, False, True, True]), np.arange(5, dtype=np.float32) + 0.5)
  np.testing.assert_array_equal(kept.padded(2), np.array([[0.5, 0], [0, 0], [3.5, 4.5]], np.float32))
  assert kept.padded(2).dtype == np.float32
  with pytest.raises(IndexError):
    found.padded(2)


def test_rows_with_an_entry_in_common():
  rows = ragged.Ragged(np.array([1, 4, 2, 4, 0], np.int32), np.array([2, 0, 1, 2]))
  expected = [[1, 0, 0, 1], [0, 0, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1]]
  assert ragged.common(rows, 5).dtype == bool
  assert ragged.common(rows, 5).astype(int).tolist() == expected
  rng = np.random.default_rng(0)
  dense = rng.random((300, 40)) < 0.03
  dense[:250, 7] = True  # so many that a count of small width would come round to 0
  found = ragged.common(ragged.of_matrix(sp.csr_matrix(dense), np.arange(300, dtype=np.int32)), 40)
  np.testing.assert_array_equal(found, (dense.astype(int) @ dense.T.astype(int)) > 0)
