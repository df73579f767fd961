"""Sampled rows: probabilities by hand, and sums that are right on average."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xmc_jax.ops.row_sampling import inclusion_probabilities, systematic


@pytest.mark.parametrize(
  "sizes, number, expected",
  [
    ([4, 1, 1, 2], 2, [1, 0.25, 0.25, 0.5]),  # the first is certain; the others share one place
    ([8, 1, 7, 2], 3, [1, 1 / 3, 1, 2 / 3]),
    ([0, 3, 0, 1], 2, [0, 1, 0, 1]),
    ([0, 3, 0, 1], 3, [0, 1, 0, 1]),
    ([0, 0], 1, [0, 0]),
    ([1, 1, 1, 1], 2, [0.5] * 4),
  ],
)
def test_probabilities(sizes, number, expected):
  found = inclusion_probabilities(jnp.array(sizes, jnp.float32), number)
  np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("number", [3, 17, 60])
def test_each_row_comes_as_often_as_its_probability_says_and_sums_are_right(number):
  sizes = np.random.default_rng(0).pareto(1.0, 60).astype(np.float32)
  sizes[:5] = 0
  probabilities = inclusion_probabilities(sizes, number)
  keys = jax.random.split(jax.random.key(1), 4000)
  ids, weights = jax.vmap(lambda key: systematic(key, probabilities, number))(keys)
  used = np.asarray(weights > 0)
  counts = np.bincount(np.asarray(ids)[used], minlength=60) / len(keys)
  np.testing.assert_allclose(counts, probabilities, atol=4 * 0.5 / np.sqrt(len(keys)))
  assert all(len(set(row)) == len(row) for row in map(np.compress, used, np.asarray(ids)))
  totals = (np.asarray(weights) * sizes[np.asarray(ids)]).sum(axis=1)
  np.testing.assert_allclose(totals.mean(), sizes.sum(), rtol=1e-3)


def test_sums_of_many_small_probabilities_are_whole():
  """In float32 a running sum of a million such numbers would stop to grow."""
  num, number = 2**20, 2**17
  sizes = np.ones(num, np.float32)
  sizes[: number // 2] = 1e4
  ids, weights = systematic(jax.random.key(0), inclusion_probabilities(sizes, number), number)
  assert np.unique(ids[weights > 0]).size >= number - 2**8
  assert np.isin(np.arange(number // 2), ids).mean() > 0.99
  small = np.asarray(weights)[np.asarray(ids) >= number // 2].sum()
  np.testing.assert_allclose(small, num - number // 2, rtol=0.01)


@pytest.mark.parametrize("size", [np.nan, np.inf])
def test_what_is_not_finite_is_not_hidden(size):
  probabilities = inclusion_probabilities(jnp.array([1.0, size, 0.0, 2.0]), 2)
  assert np.isnan(systematic(jax.random.key(0), probabilities, 2)[1]).all()
