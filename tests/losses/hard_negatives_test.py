"""A row's hardest negatives: found by one selection, and -inf and 0 where there are none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xmc_jax import losses

LOSSES = {
  "margin": lambda scores, labels: losses.margin(scores, labels, num_negatives=5),
  "dexa": lambda scores, labels: losses.margin(scores, labels, num_negatives=5, num_positives=3),
  "dynamic margin": lambda scores, labels: losses.dynamic_margin(scores, labels, num_negatives=5),
}


@pytest.mark.parametrize("name", list(LOSSES))
def test_a_compiled_loss_selects_and_does_not_sort_whole_rows(name):
  scores, labels = jnp.zeros((8, 512)), jnp.zeros((8, 512), jnp.int32)
  step = jax.jit(jax.value_and_grad(lambda scores: LOSSES[name](scores, labels).sum()))
  program = step.lower(scores).compile().as_text()
  assert 'custom_call_target="TopK"' in program and " sort(" not in program


def test_the_highest_score_is_the_first_one():
  scores = np.random.default_rng(0).normal(size=(6, 20)).astype(np.float32)
  negative = np.ones((6, 20), bool)
  negative[0], negative[1, 3:] = False, False
  scores[2] = -np.float32(3e38)
  found = losses.hardest_negatives(scores, negative, 5, 0.1)
  expected = -np.sort(-np.where(negative, scores, -np.inf), axis=1)[:, :5]
  np.testing.assert_array_equal(found.scores, expected)
  np.testing.assert_array_equal(found.highest[:, 0], np.where(expected[:, 0] > -np.inf, expected[:, 0], 0))
