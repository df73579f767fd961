"""How many real tokens a slot holds: enough for practically every batch, and not much more."""

import numpy as np
import pytest
import scipy.sparse as sp
import tiny_runs
from hypothesis import given, settings
from hypothesis import strategies as st

from xmc_jax.batching import label_pools, length_buckets


def _batch_tokens(slots, lengths, generator):
  """Real tokens of each slot in one batch sampled at random."""
  sampled = generator.choice(lengths, length_buckets.num_rows(slots), replace=False)
  placed = np.minimum(sampled[length_buckets.assign(slots, sampled)], slots[-1][0])
  return np.add.reduceat(placed, np.cumsum([0, *(rows for _, rows in slots[:-1])]))


def test_a_thousand_random_batches_have_room_and_most_of_it_is_used():
  rng = np.random.default_rng(0)
  lengths = np.clip(rng.normal(19, 5, 20_000), 4, 32).astype(np.int64)
  slots = length_buckets.plan(lengths, 256, 32)
  most = length_buckets.most_real_tokens(slots, lengths)
  found = np.array([_batch_tokens(slots, lengths, rng) for _ in range(1000)])
  assert np.all(found <= most)
  assert found.sum(axis=1).mean() > 0.9 * sum(most)
  assert found.sum(axis=1).mean() < 0.82 * sum(width * rows for width, rows in slots)  # of padded slots


def test_texts_that_are_sampled_by_chance_of_their_own_leave_no_room_for_the_others():
  rng = np.random.default_rng(0)
  lengths, chances = np.array([5] * 500 + [30] * 500), np.array([0.4] * 500 + [0.02] * 500)
  slots = length_buckets.plan(lengths, 400, 32, weights=chances)
  most = length_buckets.most_real_tokens(slots, lengths, weights=chances)
  for _ in range(300):
    sampled = lengths[rng.random(1000) < chances]
    order = length_buckets.assign(slots, sampled)
    placed = np.where(order >= 0, sampled[order], 0)
    assert np.all(np.add.reduceat(placed, np.cumsum([0, *(rows for _, rows in slots[:-1])])) <= most)
  expected = np.sum(chances * lengths)
  assert sum(most) < 1.7 * expected < sum(width * rows for width, rows in slots)


@settings(max_examples=60)
@given(
  lengths=st.lists(st.integers(0, 40), min_size=1, max_size=30),
  rows=st.integers(1, 40),
  width=st.integers(1, 33),
  group_size=st.integers(1, 20),
)
def test_a_slot_never_has_more_tokens_than_cells_nor_none(lengths, rows, width, group_size):
  lengths = np.array(lengths)
  slots = length_buckets.plan(lengths, rows, width)
  most = length_buckets.most_real_tokens(slots, lengths, group_size=group_size)
  assert len(most) == len(slots)
  assert all(1 <= tokens <= width * rows for tokens, (width, rows) in zip(most, slots))


@pytest.mark.parametrize("one_more", [0, 1])
def test_groups_say_how_many_tokens_they_have_unless_one_has_more(one_more):
  table, slots = tiny_runs.token_table([3, 4, 8, 7 + one_more]), ((4, 2), (8, 2))
  _, groups = length_buckets.lay_out(table, np.arange(4), slots, length_buckets.Layout(8), most=(7, 15))
  assert [group.num_real_tokens for group in groups] == ([None, None] if one_more else [7, 15])


@pytest.mark.parametrize("num_positives", [0, 1, 2])
def test_a_labels_share_is_how_often_sampling_brings_it(num_positives):
  rows = [[0, 1, 2, 3, 4, 5], [0], [0, 1], [5], [2, 3, 4]]
  truth = sp.lil_matrix((len(rows), 7))
  for row, labels in enumerate(rows):
    truth[row, labels] = 1
  share = label_pools.label_frequency(truth.tocsr(), None, num_positives)
  rng, sampled = np.random.default_rng(0), np.zeros(7)
  for _ in range(4000):
    labels = rows[rng.integers(len(rows))]
    np.add.at(sampled, rng.choice(labels, min(num_positives or 9, len(labels)), replace=False), 1)
  np.testing.assert_allclose(share, sampled / sampled.sum(), atol=0.015)
