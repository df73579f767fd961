"""Pick-some-labels against its definition in plain Python, both ways round."""

import math

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import loss_references
import numpy as np
import pytest

from xmc_jax import losses

# One program for each shape and loss: called as it is, each of its operations would be a program.
pick_some_labels = jax.jit(losses.pick_some_labels, static_argnums=2)


REFERENCES = {
  losses.decoupled_softmax: loss_references.decoupled_softmax_row,
  losses.softmax: loss_references.softmax_row,
}


SHAPE = (4, 6)  # smaller ones by the mask


@st.composite
def cases(draw):
  scores = draw(hnp.arrays(np.float32, SHAPE, elements=st.floats(-4, 4, width=32)))
  return scores, draw(hnp.arrays(bool, SHAPE)), draw(hnp.arrays(bool, SHAPE))


@pytest.mark.parametrize("loss, row", REFERENCES.items(), ids=lambda f: f.__name__)
@hypothesis.given(case=cases())
def test_both_directions_are_the_definition(loss, row, case):
  for arrays in (case, [array.T for array in case]):
    expected = loss_references.pick_some_labels(row, *arrays)
    found = pick_some_labels(*arrays[:2], loss, where=arrays[2])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_hand_worked_numbers():
  # Query 0 carries labels 0 and 1, query 1 label 1; label 2 is nobody's.
  scores, labels = np.log([[2.0, 1.0, 1.0], [1.0, 3.0, 4.0]]), np.array([[1, 1, 0], [0, 1, 0]])
  queries = (math.log(3 / 2) / 2 + math.log(2) / 2 + math.log(8 / 3)) / 2
  found = pick_some_labels(scores, labels, losses.decoupled_softmax)
  assert found == pytest.approx(queries, rel=1e-6)
  # Label 0: query 0 against query 1. Label 1: both are its positives, and nothing is against them.
  found = pick_some_labels(scores.T, labels.T, losses.decoupled_softmax)
  assert found == pytest.approx(math.log(3 / 2) / 2, rel=1e-6)
  # SupCon: positives compete.
  found = pick_some_labels(scores.T, labels.T, losses.softmax)
  label_1 = (math.log(4 / 1) + math.log(4 / 3)) / 2
  assert found == pytest.approx((math.log(3 / 2) + label_1) / 2, rel=1e-6)


def test_binary_is_a_sum_over_the_pool_and_a_mean_over_queries():
  scores, labels = np.array([[1.0, -2.0, 0.5], [0.0, 1.0, 2.0]]), np.array([[1, 0, 0], [1, 0, 1]])
  expected = np.log1p(np.exp(np.where(labels, -scores, scores))).sum(1).mean()
  assert pick_some_labels(scores, labels, losses.binary) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("where", [None, False])
def test_without_a_positive_there_is_nothing(where):
  scores, labels = jnp.full((3, 4), 1e4), np.zeros((3, 4)) if where is None else np.ones((3, 4))
  for loss in (losses.decoupled_softmax, losses.softmax, losses.binary):
    value, slope = jax.value_and_grad(lambda s: pick_some_labels(s, labels, loss, where=where))(scores)  # noqa: B023
    assert value == 0 and not np.any(slope)


@pytest.mark.parametrize("loss", [losses.decoupled_softmax, losses.softmax, losses.binary])
def test_finite_at_extremes_and_blind_to_what_is_masked(loss):
  rng = np.random.default_rng(0)
  labels, where = rng.random((6, 9)) < 0.3, rng.random((6, 9)) < 0.7
  scores = np.where(where, rng.choice([-1e4, 0.0, 1e4], (6, 9)), np.nan).astype(np.float32)

  def total(scores):
    return pick_some_labels(scores, labels, loss, where=where)

  value, slope = jax.value_and_grad(total)(scores)
  assert np.isfinite(value) and np.all(np.isfinite(slope)) and not np.any(slope[~where])
  other = np.where(where, scores, 17.0)
  assert total(other) == value
