"""Decoupled softmax: numbers worked by hand, and who stands in whose denominator."""

import jax
import jax.numpy as jnp
import numpy as np

from xmc_jax.losses import decoupled_softmax, softmax


def test_hand_worked_rows():
  scores = np.log([[1.0, 2.0, 3.0, 4.0]] * 3).astype(np.float32)
  labels = [[0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]]
  # Row 2: negatives weigh 2 + 3 = 5, so the positives have 1/(1+5) and 4/(4+5).
  expected = [-np.log(2 / 10), -(np.log(1 / 6) + np.log(4 / 9)) / 2, 0.0]
  np.testing.assert_allclose(decoupled_softmax(scores, labels), expected, rtol=1e-6)


def test_hand_worked_gradient():
  # P = {0, 1}, w = 1/2 each; negatives weigh 3 + 4 = 7: sigma_0 = 1/8, sigma_1 = 2/9.
  # Positives: w (sigma - 1). Negative l: (1/2) e^{s_l} (1/8 + 1/9).
  grad = jax.grad(lambda s: decoupled_softmax(s, jnp.array([1, 1, 0, 0])))(jnp.log(jnp.arange(1.0, 5.0)))
  share = (1 / 8 + 1 / 9) / 2
  np.testing.assert_allclose(grad, [-7 / 16, -7 / 18, 3 * share, 4 * share], rtol=1e-5)


def test_a_positive_of_weight_zero_stays_out_of_every_denominator():
  labels, weights = jnp.array([1, 1, 0]), jnp.array([1.0, 0.0, 0.0])
  value, grad = jax.value_and_grad(lambda s: decoupled_softmax(s, labels, weights=weights))(
    jnp.array([0.0, 50.0, 0.0])
  )
  np.testing.assert_allclose(value, np.log(2), rtol=1e-6)
  np.testing.assert_allclose(grad, [-0.5, 0.0, 0.5], rtol=1e-6)


def test_confident_positives_do_not_push_each_other():
  # Softmax can do no better than log 2 here; the decoupled loss vanishes.
  scores, labels = np.array([30.0, 30.0, -30.0], np.float32), [1, 1, 0]
  assert float(decoupled_softmax(scores, labels)) < 1e-20
  np.testing.assert_allclose(softmax(scores, labels), np.log(2), rtol=1e-6)


def test_a_row_without_negatives_is_zero_with_zero_gradient():
  scores = jnp.array([[1e4, -1e4, 0.0], [1.0, 2.0, 3.0]])
  labels, where = jnp.array([[1, 1, 1], [1, 1, 0]]), jnp.array([[True] * 3, [True, True, False]])
  value, grad = jax.value_and_grad(lambda s: decoupled_softmax(s, labels, where=where).sum())(scores)
  assert float(value) == 0
  assert not np.any(grad)


def test_large_scores_keep_their_digits():
  got = decoupled_softmax(np.array([10000.0, 10001.0, -10000.0], np.float32), [1, 0, 1])
  np.testing.assert_allclose(got, (np.log1p(np.e) + 20001.0) / 2, rtol=1e-6)
  got = decoupled_softmax(np.array([10000.0, 10001.0], np.float32), [1, 0])
  np.testing.assert_allclose(got, np.log1p(np.e), rtol=1e-6)


def test_memory_is_linear_in_the_labels():
  # P · L entries would be 400 MB here; the compiled gradient has a few rows of L.
  num_labels = 10_000
  labels = jnp.ones(num_labels).at[: num_labels // 2].set(0)
  step = jax.jit(jax.grad(lambda s: decoupled_softmax(s, labels)))
  memory = step.lower(jnp.zeros(num_labels)).compile().memory_analysis()
  assert memory.temp_size_in_bytes < 20 * 4 * num_labels
