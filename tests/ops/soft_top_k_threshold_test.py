"""The root finder and the tally: right in every row, in few calls."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xmc_jax.ops import find_threshold, soft_top_k_threshold

as_they_are = lambda block: block


@jax.jit  # one program for each length
def log_odds_of(logits, k, count):
  return soft_top_k_threshold.log_odds(soft_top_k_threshold.tally(logits, as_they_are), k, count)


class Counted:
  """A function of t, for use under `jax.disable_jit`, that counts its calls."""

  def __init__(self, function):
    self.function, self.calls = function, 0

  def __call__(self, t):
    self.calls += 1
    return self.function(t)


def sums(logits):
  """Σ σ, Σ σ(1 - σ), and the number of logits above 0, in float64."""
  z, rest = (1 / (1 + np.exp(sign * logits.astype(np.float64))) for sign in (-1, 1))
  return z.sum(-1), (z * rest).sum(-1), (logits > 0).sum(-1)


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


def test_a_tally_by_hand():
  # σ(log 3) = 3/4, σ(-log 4) = 1/5, σ(0) = 1/2.
  seen = soft_top_k_threshold.tally(jnp.log(jnp.array([[3.0, 1 / 4, 1.0, 0.0]])), as_they_are)
  np.testing.assert_allclose(
    np.stack(seen)[:, 0], [1, 1 / 4, 1 / 5 + 1 / 2, 3 / 16 + 4 / 25 + 1 / 4], rtol=1e-6
  )


def test_a_tally_keeps_the_digits_of_what_is_settled():
  # The sum would be 1000 in float32.
  seen = soft_top_k_threshold.tally(jnp.full(1000, 30.0), as_they_are)
  assert float(seen.above) == 1000
  np.testing.assert_allclose(seen.over, 1000 * np.exp(-30.0), rtol=1e-5)


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
  np.testing.assert_array_equal(
    soft_top_k_threshold.reduce_rows(lambda block: (block,), scores[:, :0], by="max"), -np.inf
  )


@hypothesis.given(
  logits=st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=6), share=st.floats(0.01, 0.99)
)
def test_log_odds_and_their_slope_equal_the_definition(logits, share):
  logits = np.array(logits)
  count = len(logits)
  k = share * count
  with jax.enable_x64(True):
    value, slope = log_odds_of(logits, k, float(count))
  total, spread, _ = sums(logits)
  rest, _, _ = sums(-logits)  # count - total, without what a subtraction loses
  assert np.sign(value) == np.sign(total - k) or abs(total - k) < 1e-12
  if abs(np.sum(logits > 0) - k) > 0.01:  # else it is another function, with the same root
    np.testing.assert_allclose(value, np.log(total / k) - np.log(rest / (count - k)), atol=1e-9)
    np.testing.assert_allclose(slope, spread / total + spread / rest, rtol=1e-6)


def test_log_odds_in_a_gap_tell_how_far_its_middle_is():
  # One entry 20 above and two 30 below: the misses e^-20 and 2 e^-30 balance at t = 5 - log(2) / 2.
  seen = soft_top_k_threshold.tally(jnp.array([20.0, -30.0, -30.0]), as_they_are)
  value, slope = soft_top_k_threshold.log_odds(seen, 1.0, 3.0)
  np.testing.assert_allclose([-value / slope, slope], [5 - np.log(2) / 2, 2], rtol=1e-5)


def test_a_gap_that_is_not_felt_has_no_slope():
  value, slope = soft_top_k_threshold.log_odds(
    soft_top_k_threshold.tally(jnp.array([500.0, -500.0]), as_they_are), 1.0, 2.0
  )
  assert (float(value), float(slope)) == (0, 0)


def test_the_bracket_by_hand():
  k, count, span = jnp.array([1.0, 0.0, 4.0, 9.0, -1.0, 3.0]), jnp.array([4.0, 4, 4, 4, 4, 0]), 2.0
  low, high = soft_top_k_threshold.bracket(k, count, jnp.full(6, span))
  np.testing.assert_allclose(low, [-np.log(3), -10, 12, 12, -10, 0], rtol=1e-6)
  np.testing.assert_allclose(high, [2 - np.log(3), -10, 12, 12, -10, 0], rtol=1e-6)


@hypothesis.given(
  logits=st.lists(st.floats(-50, 0, width=32), min_size=1, max_size=6), share=st.floats(0.001, 0.999)
)
def test_the_bracket_holds_the_root(logits, share):
  logits = np.array(logits) - max(logits)
  k = share * len(logits)
  low, high = soft_top_k_threshold.bracket(
    jnp.float32(k), jnp.float32(len(logits)), jnp.float32(-logits.min())
  )
  assert sums(logits + float(low) - 1e-4)[0] <= k <= sums(logits + float(high) + 1e-4)[0]


@pytest.mark.slow
@pytest.mark.parametrize("spread, limit", [(0.1, 4), (1, 5), (2, 6), (4, 8), (8, 10), (20, 12)])
@pytest.mark.parametrize("k", [1, 5, 5.5, 100, 5000, 9995])
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
