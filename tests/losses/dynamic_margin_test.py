"""PRIME's dynamic margin: its three regions by hand, the definition in loops, and what its gradient is."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loss_references import dynamic_margin_row

from xmc_jax import losses


@functools.partial(jax.jit, static_argnames=("num_negatives", "minimum", "maximum"))
def value_and_grad(scores, labels, **options):
  loss = lambda s: losses.dynamic_margin(s, labels, **options)
  return jax.value_and_grad(lambda s: loss(s).sum())(jnp.asarray(scores))


@pytest.mark.parametrize(
  "lead, expected",
  [
    (0.4, 0.0),  # the positive leads by more than either margin
    (0.15, 0.0),  # by more than the smaller one: the margin is what it leads by
    (0.04, 0.06),  # nearly level: 0.1 - 0.04; the paper's eq. 3 would turn this gradient round
    (-0.04, 0.14),
    (-0.2, 0.4),  # behind: twice as much
    (-0.7, 1.0),  # far behind: 0.3 on top
  ],
)
def test_one_pair_in_each_region(lead, expected):
  value, gradient = value_and_grad([0.2, 0.2 - lead], [1, 0])
  np.testing.assert_allclose(value, expected, atol=1e-6)
  np.testing.assert_array_equal(gradient, [-1.0, 1.0] if expected else [0.0, 0.0])


def test_without_weights_every_pair_counts_the_same():
  # 0.5 leads 0.25 by 0.25, the margin; 0.2 is 0.05 behind, and its margin 0.1.
  value, gradient = value_and_grad([0.25, 0.5, 0.2], [1, 0, 0], weight_temperature=0.0)
  np.testing.assert_allclose(value, 0.5 + 0.05, atol=1e-6)
  np.testing.assert_array_equal(gradient, [-2.0, 1.0, 1.0])


def test_a_row_worked_by_hand():
  scores = [0.5, 0.45, 0.75, 0.3]  # the last does not violate
  share = 1 / (1 + np.exp(3.0))  # of 0.45 beside 0.75, at temperature 0.1
  value, gradient = value_and_grad(scores, [1, 0, 0, 0])
  np.testing.assert_allclose(value, share * 0.05 + (1 - share) * 0.5, rtol=1e-5)
  np.testing.assert_allclose(gradient, [-1, share, 1 - share, 0], rtol=1e-5)


def test_gradient_through_the_weights_by_hand():
  """Terms .5, .3 and .15 weigh .665, .245 and .090: .4195; dL/ds_n = ω_n (1 + (term_n - .4195)/T)."""
  scores, labels = jnp.array([[0.2, 0.45, 0.35, 0.25]]), jnp.array([[1, 0, 0, 0]])
  weights = np.exp([0.0, -1.0, -2.0]) / np.exp([0.0, -1.0, -2.0]).sum()
  terms = np.array([0.5, 0.3, 0.15])
  expected = weights * (1 + (terms - weights @ terms) / 0.1)
  loss = lambda scores: losses.dynamic_margin(scores, labels, differentiable_weights=True).sum()
  value, slope = jax.value_and_grad(loss)(scores)
  assert float(value) == pytest.approx(weights @ terms, rel=1e-5)
  np.testing.assert_allclose(slope[0], [-1, *expected], rtol=1e-4)
  np.testing.assert_allclose(expected, [1.20, -0.05, -0.15], atol=0.01)


@hypothesis.given(
  sizes=st.sampled_from(  # labels, negatives and margins: each of these is a program of its own
    [(12, 3, (0.1, 0.3)), (12, 100, (0.0, 0.05)), (12, 1, (0.2, 0.2)), (2, 3, (0.1, 0.3)), (1, 1, (0.2, 0.2))]
  ),
  positive_rate=st.sampled_from([0.0, 0.3, 1.0]),
  spread=st.sampled_from([0.2, 5.0]),
  seed=st.integers(0, 1000),
)
@hypothesis.settings(max_examples=30)
def test_value_and_gradient_equal_the_definition(sizes, positive_rate, spread, seed):
  num_labels, num_negatives, bounds = sizes
  rng = np.random.default_rng(seed)
  shape = (3, num_labels)
  scores, labels = spread * rng.standard_normal(shape), rng.random(shape) < positive_rate
  weights, where = rng.random(shape) * (rng.random(shape) < 0.8), rng.random(shape) < 0.8
  minimum, maximum = bounds
  options = {"minimum": minimum, "maximum": maximum}
  expected, gradients = 0.0, np.zeros(shape)
  for row, keep in enumerate(where):
    parts = (x[row][keep] for x in (scores, labels, weights))
    loss, gradients[row, keep] = dynamic_margin_row(*parts, num_negatives=num_negatives, **options)
    expected += loss
  options |= {"num_negatives": num_negatives, "weights": weights, "where": where}
  with jax.enable_x64(True):
    value, gradient = value_and_grad(scores, labels, **options)
    np.testing.assert_allclose(value, expected, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(gradient, gradients, rtol=1e-10, atol=1e-12)
  value, gradient = value_and_grad(scores.astype(np.float32), labels, **options)
  np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


def test_many_negatives_at_a_time():
  """Two hundred negatives, a hundred count: sums that run over many must not lose digits."""
  rng = np.random.default_rng(1)
  scores = (0.3 * rng.standard_normal((8, 200))).astype(np.float32)
  labels = np.arange(200) < 4
  scores[:, :4] = [[-0.5, 0.0, 0.5, 0.9]]
  value, gradient = value_and_grad(scores, labels)
  rows = [dynamic_margin_row(row.astype(np.float64), labels, labels / 4) for row in scores]
  np.testing.assert_allclose(value, sum(loss for loss, _ in rows), rtol=1e-6)
  np.testing.assert_allclose(gradient, [gradient for _, gradient in rows], rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("options", [{"minimum": -0.1}, {"minimum": 0.4}, {"num_negatives": 0}])
def test_impossible_settings_are_refused(options):
  with pytest.raises(ValueError, match="minimum <= maximum"):
    losses.dynamic_margin([1.0, 0.0], [1, 0], **options)


def test_memory_is_linear_in_the_labels():
  """Ten thousand positives against a hundred negatives: no [P, η] array."""
  labels = jnp.arange(10_000) % 2
  gradient = jax.jit(jax.grad(lambda s: losses.dynamic_margin(s, labels)))
  stats = gradient.lower(jnp.zeros(10_000)).compile().memory_analysis()
  assert stats.temp_size_in_bytes < 30 * 4 * 10_000
