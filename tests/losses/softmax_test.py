"""Softmax: numbers worked by hand, and how positives compete."""

import jax
import jax.numpy as jnp
import numpy as np

from xmc_jax.losses import softmax


def test_hand_worked_rows():
  scores = np.log([[1.0, 2.0, 3.0, 4.0]] * 3).astype(np.float32)  # softmax is .1 .2 .3 .4
  labels = [[0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]]
  expected = [-np.log(0.2), -(np.log(0.1) + np.log(0.4)) / 2, 0.0]
  np.testing.assert_allclose(softmax(scores, labels), expected, rtol=1e-6)


def test_hand_worked_weights_and_mask():
  scores = np.log([1.0, 2.0, 3.0, 4.0]).astype(np.float32)
  where = np.array([True, True, True, False])  # softmax is 1/6 2/6 3/6
  got = softmax(scores, [1, 1, 0, 1], weights=np.array([0.75, 0.25, 9.0, 9.0]), where=where)
  np.testing.assert_allclose(got, -0.75 * np.log(1 / 6) - 0.25 * np.log(2 / 6), rtol=1e-6)


def test_a_positive_of_weight_zero_still_competes():
  scores = jnp.zeros(4)
  np.testing.assert_allclose(softmax(scores, [1, 1, 0, 0], weights=jnp.array([1.0, 0, 0, 0])), np.log(4))
  grad = jax.grad(lambda s: softmax(s, [1, 1, 0, 0], weights=jnp.array([1.0, 0, 0, 0])))(scores)
  np.testing.assert_allclose(grad, [-0.75, 0.25, 0.25, 0.25])


def test_large_scores_keep_their_digits():
  # log(e^10000 + e^10001) would be rounded to a thousandth in float32.
  got = softmax(np.array([10000.0, 10001.0], np.float32), [1, 0])
  np.testing.assert_allclose(got, np.log1p(np.e), rtol=1e-6)
