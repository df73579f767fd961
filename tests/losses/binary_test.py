"""Binary cross-entropy: numbers worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from xmc_jax.losses import binary


def test_hand_worked_rows():
  # sigmoid(log 3) = 3/4: a positive costs -log 3/4, a negative -log 1/4.
  scores = np.full((3, 2), np.log(3.0), np.float32)
  expected = [-np.log(3 / 4) - np.log(1 / 4), -2 * np.log(1 / 4), -2 * np.log(3 / 4)]
  np.testing.assert_allclose(binary(scores, [[1, 0], [0, 0], [1, 1]]), expected, rtol=1e-6)


def test_sums_over_labels():
  np.testing.assert_allclose(binary(np.zeros(1000, np.float32), np.zeros(1000)), 1000 * np.log(2), rtol=1e-6)


def test_gradient_is_sigmoid_minus_label():
  grad = jax.grad(lambda s: binary(s, jnp.array([1, 0, 0])))(jnp.log(jnp.array([3.0, 3.0, 1.0])))
  np.testing.assert_allclose(grad, [-1 / 4, 3 / 4, 1 / 2], rtol=1e-6)


def test_confident_labels_keep_their_digits():
  # softplus(20) - 20 is 0 in float32; the loss is e^-20.
  np.testing.assert_allclose(binary(np.array([20.0], np.float32), [1]), np.exp(-20.0), rtol=1e-5)
