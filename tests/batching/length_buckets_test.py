"""Slots: their rows add up, what `assign` places fits, and nothing is lost."""

import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from xmc_jax.batching import length_buckets


@st.composite
def _tables(draw):
  multiple = draw(st.sampled_from([1, 2, 4, 8]))
  return {
    "lengths": np.array(draw(st.lists(st.integers(0, 80), max_size=60)), np.int64),
    "num_rows": multiple * draw(st.integers(1, 40)),
    "max_length": draw(st.sampled_from([2, 7, 8, 9, 24, 32, 61])),
    "multiple": multiple,
  }


@hypothesis.given(table=_tables())
def test_a_plan_adds_up_and_divides(table):
  slots = length_buckets.plan(**table)
  widths, rows = zip(*slots)
  assert sum(rows) == table["num_rows"]
  assert all(count > 0 and count % table["multiple"] == 0 for count in rows)
  assert list(widths) == sorted(set(widths)) and set(widths) <= set(
    length_buckets.widths(table["max_length"])
  )
  assert len(slots) <= 3
  assert sum(width * count for width, count in slots) <= table["max_length"] * table["num_rows"]


@hypothesis.given(table=_tables(), seed=st.integers(0, 1000), fill=st.floats(0, 1))
def test_what_is_assigned_fits_and_nothing_is_lost(table, seed, fill):
  slots, total = length_buckets.plan(**table), table["num_rows"]
  count = round(fill * total) if len(table["lengths"]) else 0
  sampled = np.random.default_rng(seed).choice(table["lengths"], count) if count else np.zeros(0, np.int64)
  order = length_buckets.assign(slots, sampled)
  if order is None:
    slots = ((slots[-1][0], total),)
    order = length_buckets.assign(slots, sampled)
  assert len(order) == total
  assert sorted(order[order >= 0]) == list(range(count))
  width_of = np.repeat([width for width, _ in slots], [rows for _, rows in slots])
  real = order >= 0
  wanted = np.minimum(sampled[order[real]], slots[-1][0])  # the widest slot cuts what is longer still
  assert np.all(wanted <= width_of[real])


@pytest.mark.parametrize(
  ("slots", "lengths", "expected"),
  [
    (((8, 2), (16, 1)), [9, 3, 1], [2, 1, 0]),
    (((8, 2), (16, 1)), [3], [-1, -1, 0]),
    (((8, 2), (16, 1)), [], [-1, -1, -1]),
    (((8, 1), (16, 2)), [99, 16, 8], [2, 1, 0]),  # 99 is cut
    (((8, 2), (16, 1)), [9, 9, 1], None),
    (((8, 2), (16, 1)), [9, 9], None),
  ],
)
def test_assign_by_hand(slots, lengths, expected):
  order = length_buckets.assign(slots, np.array(lengths, np.int64))
  assert (None if order is None else order.tolist()) == expected


def test_random_batches_practically_always_fit():
  rng = np.random.default_rng(0)
  lengths = rng.geometric(0.08, 5000)
  slots = length_buckets.plan(lengths, 256, 64)
  assert len(slots) == 3
  assert all(
    length_buckets.assign(slots, rng.choice(lengths, 256, replace=False)) is not None for _ in range(500)
  )
  assert sum(width * rows for width, rows in slots) < 0.6 * 64 * 256


def test_plans_of_nothing_and_of_one_width():
  assert length_buckets.plan(np.zeros(0, np.int64), 8, 32) == ((8, 8),)
  assert length_buckets.plan(np.full(10, 5), 6, 6) == ((6, 6),)
  assert length_buckets.plan(np.full(10, 100), 6, 16) == ((16, 6),)
  assert length_buckets.widths(8) == [8] and length_buckets.widths(20) == [8, 16, 20]


@hypothesis.given(
  lengths=st.lists(st.integers(0, 40), max_size=60), max_length=st.sampled_from([2, 4, 8, 13, 20])
)
def test_a_tight_split_is_the_best_of_all(lengths, max_length):
  """Against every choice of widths; each counts for 1 % of the tokens."""
  lengths = np.array(lengths, np.int64)
  split = length_buckets.split_tightly(lengths, max_length)
  together = np.concatenate([rows for _, rows in split]) if split else np.zeros(0, int)
  assert sorted(together) == list(range(len(lengths)))
  kept = np.minimum(lengths, max_length)
  assert all(np.all(kept[rows] <= width) for width, rows in split)

  def cost(ends):
    widths = np.asarray(ends)[np.searchsorted(ends, kept)]
    return widths.sum() * (1 + 0.01 * len(ends))

  inner = range(4, max_length, 4)
  subsets = (itertools.combinations(inner, count) for count in range(len(inner) + 1))
  choices = [[*chosen, max_length] for chosen in itertools.chain(*subsets)]
  if len(lengths):
    found = sum(width * len(rows) for width, rows in split) * (1 + 0.01 * len(split))
    assert found <= min(map(cost, choices)) + 1e-9


def test_few_widths():
  assert length_buckets.few_widths(24) == [8, 16, 24] and length_buckets.few_widths(2) == [2]
  assert length_buckets.few_widths(512) == [8, 16, 24, 32, 64, 128, 256, 512]


def test_a_tight_split_by_hand():
  lengths = np.array([3] * 100 + [11] * 100 + [12] + [30] * 5)
  split = length_buckets.split_tightly(lengths, 32)
  assert [(width, len(rows)) for width, rows in split] == [(4, 100), (12, 101), (32, 5)]
  # All lengths alike: evenly spread, and eight groups at most.
  widths = [width for width, _ in length_buckets.split_tightly(np.arange(1, 513).repeat(9), 512)]
  assert widths == [64, 128, 192, 256, 320, 384, 448, 512]


@hypothesis.given(
  lengths=st.lists(st.integers(0, 80), max_size=60),
  max_length=st.sampled_from([2, 8, 24, 61]),
  few=st.booleans(),
)
def test_split_by_width_takes_the_narrowest_width_that_holds(lengths, max_length, few):
  every = (length_buckets.few_widths if few else length_buckets.widths)(max_length)
  lengths = np.array(lengths, np.int64)
  split = length_buckets.split_by_width(lengths, max_length, every if few else ())
  together = np.concatenate([rows for _, rows in split]) if split else np.zeros(0, int)
  assert sorted(together) == list(range(len(lengths)))
  for width, rows in split:
    kept = np.minimum(lengths[rows], max_length)
    narrower = max([0, *(other for other in every if other < width)])
    assert np.all(kept <= width) and np.all((kept > narrower) | (width == every[0]))
