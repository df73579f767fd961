"""Softmax, decoupled softmax and binary cross-entropy by hand; which positives compete."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xmc_jax.losses import binary, decoupled_softmax, softmax

OF_BINARY = np.full((3, 2), np.log(3.0), np.float32)  # σ is 3/4
OF_SOFTMAX = np.log([[1.0, 2.0, 3.0, 4.0]] * 3).astype(np.float32)  # softmax is .1 .2 .3 .4
LABELS = [[0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]]


@pytest.mark.parametrize(
  "loss, scores, labels, expected",
  [
    (
      binary,
      OF_BINARY,
      [[1, 0], [0, 0], [1, 1]],
      [-np.log(3 / 4) - np.log(1 / 4), -2 * np.log(1 / 4), -2 * np.log(3 / 4)],
    ),
    (softmax, OF_SOFTMAX, LABELS, [-np.log(0.2), -(np.log(0.1) + np.log(0.4)) / 2, 0.0]),
    # Row 2: negatives weigh 2 + 3 = 5, so the positives have 1/(1+5) and 4/(4+5).
    (decoupled_softmax, OF_SOFTMAX, LABELS, [-np.log(2 / 10), -(np.log(1 / 6) + np.log(4 / 9)) / 2, 0.0]),
  ],
)
def test_hand_worked_rows(loss, scores, labels, expected):
  np.testing.assert_allclose(loss(scores, labels), expected, rtol=1e-6)


@pytest.mark.parametrize(
  "loss, scores, labels, expected",
  [
    (binary, [20.0], [1], np.exp(-20.0)),  # softplus(20) - 20 is 0 in float32
    (softmax, [10000.0, 10001.0], [1, 0], np.log1p(np.e)),  # log Σ e^s alone has thousandths
    (decoupled_softmax, [10000.0, 10001.0, -10000.0], [1, 0, 1], (np.log1p(np.e) + 20001.0) / 2),
    (decoupled_softmax, [10000.0, 10001.0], [1, 0], np.log1p(np.e)),
  ],
)
def test_large_scores_keep_their_digits(loss, scores, labels, expected):
  np.testing.assert_allclose(loss(np.array(scores, np.float32), labels), expected, rtol=1e-6)


def test_a_positive_of_weight_zero_competes_in_softmax_alone():
  labels, weights = jnp.array([1, 1, 0]), jnp.array([1.0, 0.0, 0.0])
  value, grad = jax.value_and_grad(lambda s: softmax(s, labels, weights=weights))(jnp.zeros(3))
  np.testing.assert_allclose(value, np.log(3), rtol=1e-6)
  np.testing.assert_allclose(grad, [-2 / 3, 1 / 3, 1 / 3], rtol=1e-6)
  value, grad = jax.value_and_grad(lambda s: decoupled_softmax(s, labels, weights=weights))(
    jnp.array([0.0, 50.0, 0.0])
  )
  np.testing.assert_allclose(value, np.log(2), rtol=1e-6)
  np.testing.assert_allclose(grad, [-0.5, 0.0, 0.5], rtol=1e-6)


def test_a_row_without_negatives_is_zero_with_zero_gradient():
  scores = jnp.array([[1e4, -1e4, 0.0], [1.0, 2.0, 3.0]])
  labels, where = jnp.array([[1, 1, 1], [1, 1, 0]]), jnp.array([[True] * 3, [True, True, False]])
  value, grad = jax.value_and_grad(lambda s: decoupled_softmax(s, labels, where=where).sum())(scores)
  assert float(value) == 0
  assert not np.any(grad)


def test_memory_of_decoupled_softmax_is_linear_in_the_labels():
  # P · L entries would be 400 MB here; the compiled gradient has a few rows of L.
  num_labels = 10_000
  labels = jnp.ones(num_labels).at[: num_labels // 2].set(0)
  step = jax.jit(jax.grad(lambda s: decoupled_softmax(s, labels)))
  memory = step.lower(jnp.zeros(num_labels)).compile().memory_analysis()
  assert memory.temp_size_in_bytes < 20 * 4 * num_labels
