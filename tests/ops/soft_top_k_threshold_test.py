"""The root finder and the tally: right in every row, in few calls."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xmc_jax.ops import find_threshold, soft_top_k_threshold

as_they_are = lambda block: block


class Counted:
  """A function of t, for use under `jax.disable_jit`, that counts its calls."""

  def __init__(self, function):
    self.function, self.calls = function, 0

  def __call__(self, t):
    self.calls += 1
    return self.function(t)


def sums(logits):
  """Σ σ, Σ σ(1 - σ), and the number of logits above 0, in float64."""
  z = 1 / (1 + np.exp(-logits.astype(np.float64)))
  return z.sum(-1), (z * (1 - z)).sum(-1), (logits > 0).sum(-1)


def find(logits, k):
  """The number of passes and the thresholds `[B]` of float32 logits whose largest is 0."""
  low, high = soft_top_k_threshold.bracket(
    jnp.full(len(logits), k, jnp.float32),
    jnp.full(len(logits), logits.shape[1], jnp.float32),
    -logits.min(axis=1),
  )

  def measure(t):
    seen = soft_top_k_threshold.tally(logits, lambda block: block + t[:, None])
    return soft_top_k_threshold.log_odds(seen, jnp.float32(k), jnp.float32(logits.shape[1]))

  counted = Counted(measure)
  with jax.disable_jit():
    t, _ = find_threshold(counted, low, high)
  return counted.calls, np.asarray(t)


def draw_logits(spread, shape=(8, 10_000), seed=0):
  logits = spread * np.random.default_rng(seed).standard_normal(shape, np.float32)
  return logits - logits.max(axis=1, keepdims=True)


@pytest.mark.parametrize("shape", [(3, 0), (7,), (2, 3, 5000), (5, 700_001)])
def test_a_tally_in_blocks_is_the_tally(shape):
  logits = 3 * np.random.default_rng(0).standard_normal(shape, np.float32)
  for tally in (soft_top_k_threshold.tally, jax.jit(soft_top_k_threshold.tally, static_argnums=1)):
    seen = tally(logits, as_they_are)
    total, spread, above = sums(logits)
    np.testing.assert_array_equal(seen.above, above)
    np.testing.assert_allclose(seen.above - seen.over + seen.under, total, rtol=1e-6)
    np.testing.assert_allclose(seen.spread, spread, rtol=1e-6)


def test_blocks_of_equal_entries_do_not_drift():
  # One by one, float32 would round the same way 700,000 times.
  seen = soft_top_k_threshold.tally(jnp.full((2, 700_000), -1.1), as_they_are)
  np.testing.assert_allclose(seen.under, 700_000 / (1 + np.exp(1.1)), rtol=3e-6)


def test_the_largest_values_in_blocks():
  scores = np.random.default_rng(0).standard_normal((3, 400_000), np.float32)
  highest, lowest = soft_top_k_threshold.reduce_rows(lambda block: (block, -block), scores, by="max")
  np.testing.assert_array_equal(highest, scores.max(axis=1))
  np.testing.assert_array_equal(lowest, -scores.min(axis=1))


@pytest.mark.slow
@pytest.mark.parametrize("spread, limit", [(0.1, 4), (2, 6), (20, 12)])
@pytest.mark.parametrize("k", [1, 5.5, 5000, 9995])
def test_few_calls_for_random_normals(spread, limit, k):
  logits = draw_logits(spread)
  calls, t = find(logits, k)
  assert calls <= limit
  np.testing.assert_allclose(sums(logits + t[:, None])[0], k, rtol=2e-6)


def test_few_calls_where_positives_stand_out():
  logits = draw_logits(4)
  logits[:, :5] += 40
  calls, _ = find(logits - logits.max(axis=1, keepdims=True), 5)
  assert calls <= 12


def test_all_rows_equal_needs_no_call():
  calls, t = find(np.zeros((3, 50), np.float32), 10)
  assert calls == 0
  np.testing.assert_allclose(t, -np.log(4), rtol=1e-6)


@pytest.mark.parametrize(
  "function, root",
  [
    (lambda t: (t - 3, jnp.ones_like(t)), 3.0),
    (lambda t: (jnp.arctan(t - 3), 1 / (1 + (t - 3) ** 2)), 3.0),  # Newton's method alone runs away
    (lambda t: ((t - 3) ** 3, 3 * (t - 3) ** 2), 3.0),  # and here crawls
    (lambda t: (jnp.sign(t - 3), jnp.zeros_like(t)), 3.0),  # and here has no step
    (lambda t: (jnp.tanh(1e3 * (t - 3)), 1e3 / jnp.cosh(jnp.clip(1e3 * (t - 3), -50, 50)) ** 2), 3.0),
    (lambda t: (t + 1e6, jnp.ones_like(t)), -1e4),  # the root is below the bracket
    (lambda t: (t - 1e6, jnp.ones_like(t)), 1e4),
  ],
)
def test_any_rising_function_is_solved_inside_its_bracket(function, root):
  ends = jnp.full(2, 1e4)
  with jax.enable_x64(True):
    t, _ = jax.jit(functools.partial(find_threshold, function))(-ends, ends, start=jnp.array([-1e4, 5.0]))
  np.testing.assert_allclose(t, root, rtol=1e-4)


def test_a_row_without_width_stays_where_it_is():
  function = lambda t: (t - 3, jnp.ones_like(t))
  t, _ = find_threshold(function, jnp.array([7.0, 0.0]), jnp.array([7.0, 9.0]))
  np.testing.assert_allclose(t, [7, 3], rtol=1e-6)


def test_rows_that_are_not_numbers_end_the_search():
  measure = Counted(lambda t: (t - jnp.array([3.0, jnp.nan]), jnp.ones_like(t)))
  with jax.disable_jit():
    t, _ = find_threshold(measure, jnp.zeros(2), jnp.full(2, 9.0))
  assert measure.calls <= 3
  np.testing.assert_allclose(t[0], 3, rtol=1e-6)


def test_the_number_of_calls_is_bounded():
  measure = Counted(lambda t: (jnp.sign(t - 1 / 3), jnp.zeros_like(t)))
  with jax.disable_jit():
    find_threshold(measure, jnp.zeros(1), jnp.ones(1), max_calls=5)
  assert measure.calls == 5
