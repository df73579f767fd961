"""How wide positives are: few widths, each with room for its rows, narrow where most batches are."""

import numpy as np
from made_builders import builder_of, truth_of_counts

from xmc_jax.batching.positives import choose_widths, doublings
from xmc_jax.types import BatchSpec


def test_usual_batches_are_narrow_and_the_longest_row_has_room():
  rng = np.random.default_rng(0)
  counts = np.append(rng.integers(1, 7, 9_999), 741)  # as of the bundled set
  widths = choose_widths(counts, counts, batch_size=64)
  assert widths == (8, 741)
  longest = [counts[rng.choice(len(counts), 64, replace=False)].max() for _ in range(200)]
  assert np.mean(np.array(longest) <= 8) > 0.95


def test_widths_are_few_ascending_and_never_wider_than_the_longest_row():
  rng = np.random.default_rng(1)
  for _ in range(200):
    counts = rng.zipf(1.3, rng.integers(1, 500)).clip(1, 3_000)
    in_pool = counts * rng.random(len(counts))
    widths = choose_widths(counts, in_pool, int(rng.integers(1, 600)))
    assert 1 <= len(widths) <= 3 and list(widths) == sorted(set(widths)) and widths[-1] == counts.max()
  assert choose_widths(np.zeros(0), np.zeros(0), 8) == (1,)


def test_doublings_end_where_the_longest_row_has_room():
  assert doublings(256, 3) == (3,) and doublings(8, 8) == (8,) and doublings(8, 20) == (8, 16, 32)
  assert doublings(256, 0) == (1,)


def test_batches_are_as_wide_as_their_own_rows_need():
  """One row of 700 labels makes its own batch wide; with a pool of sampled labels not even that one."""
  counts = np.append(np.full(159, 3), 700)
  for labels, num_positives, wide in (
    ("all", 1, 700),
    ("all", 0, 700),
    ("in_batch", 0, 700),
    ("in_batch", 1, 8),
  ):
    builder = builder_of(truth_of_counts(counts, 2_000), BatchSpec(labels, num_positives))
    for step in range(builder.steps_per_epoch):
      batch = builder.build(step)
      assert batch.positives.shape[1] == (wide if 159 in batch.rows else 8)
      if labels == "all":
        found = (batch.positives >= 0).sum(axis=1)
        np.testing.assert_array_equal(found, np.where(batch.rows >= 0, counts[batch.rows], 0))
