"""What every loss over a row of scores has to keep, whichever it is."""

import functools

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import loss_references
import numpy as np
import pytest

from xmc_jax import losses

# Less than one, so that it is less than the labels of any row that has some: soft_top_k_test has other k.
K = 0.7


def soft_top_k(scores, labels, **kwargs):
  return losses.soft_top_k_loss(scores, labels, K, **kwargs)


# Its gradient goes through the weights too, so that it is the slope of the definition: margin_test has both.
def margin(scores, labels, **kwargs):
  return losses.margin(scores, labels, differentiable_weights=True, **kwargs)


# Of one row without masked entries, and its weights.
REFERENCES = {
  losses.softmax: lambda *row: loss_references.softmax_row(*row)[0],
  losses.decoupled_softmax: lambda *row: loss_references.decoupled_softmax_row(*row)[0],
  losses.binary: lambda *row: loss_references.binary_row(*row)[0],
  soft_top_k: lambda scores, labels, weights: -weights @ np.log(loss_references.soft_top_k(scores, K)),
  margin: loss_references.margin_row,
  losses.dynamic_margin: lambda *row: loss_references.dynamic_margin_row(*row)[0],
}
name_of = lambda loss: loss.__name__
WEIGHTED = [loss for loss in REFERENCES if loss is not losses.binary]
# A dynamic margin is a constant for the gradient, which is then not the slope: dynamic_margin_test has it.
SLOPED = [loss for loss in REFERENCES if loss is not losses.dynamic_margin]
every_loss = pytest.mark.parametrize("loss", REFERENCES, ids=name_of)
weighted_loss = pytest.mark.parametrize("loss", WEIGHTED, ids=name_of)


def reference(loss, scores, labels, where, weights=None):
  """`[B]` float64 losses, row by row over the entries that are real."""
  out = []
  for row, (s, y, real) in enumerate(zip(scores, labels, where)):
    s, y = s[real].astype(np.float64), y[real].astype(bool)
    w = y / max(1, y.sum()) if weights is None else weights[row][real] * y
    out.append(REFERENCES[loss](s, y, w) if len(s) else 0.0)
  return np.array(out)


@functools.cache
def value_and_grad(loss):
  """The sum of a loss over its rows, and its gradient to the scores; one program for each shape."""
  return jax.jit(jax.value_and_grad(lambda scores, labels, **given: loss(scores, labels, **given).sum()))


@functools.cache
def jitted(loss):
  """A loss as one program for each shape; as it is, each of its operations would be a program."""
  return jax.jit(loss)


SHAPE = (3, 6)
batches = st.tuples(
  hnp.arrays(np.float32, SHAPE, elements=st.floats(-8, 8, width=32)),
  hnp.arrays(np.int32, SHAPE, elements=st.integers(0, 1)),
  hnp.arrays(bool, SHAPE),
)
weight_arrays = hnp.arrays(np.float32, SHAPE, elements=st.floats(0, 2, width=32))


@pytest.mark.parametrize("loss", REFERENCES, ids=name_of)
@hypothesis.given(batch=batches)
def test_equals_the_definition(loss, batch):
  scores, labels, where = batch
  np.testing.assert_allclose(
    jitted(loss)(scores, labels, where=where), reference(loss, scores, labels, where), rtol=1e-5, atol=1e-5
  )


@pytest.mark.parametrize("loss", WEIGHTED, ids=name_of)
@hypothesis.given(batch=batches, weights=weight_arrays)
def test_weights_of_the_caller_equal_the_definition(loss, batch, weights):
  scores, labels, where = batch
  got = jitted(loss)(scores, labels, weights=weights, where=where)
  np.testing.assert_allclose(got, reference(loss, scores, labels, where, weights), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("loss", SLOPED, ids=name_of)
@hypothesis.given(batch=batches)
@hypothesis.settings(max_examples=10)
def test_gradient_equals_central_differences_of_the_definition(loss, batch):
  scores, labels, where = batch
  step = 1e-5
  with jax.enable_x64(True):
    scores = scores.astype(np.float64)
    grad = np.asarray(value_and_grad(loss)(scores, labels, where=where)[1])
    for column in range(SHAPE[1]):
      nudge = np.zeros(SHAPE)
      nudge[:, column] = step
      higher = reference(loss, scores + nudge, labels, where)
      lower = reference(loss, scores - nudge, labels, where)
      np.testing.assert_allclose(grad[:, column], (higher - lower) / (2 * step), rtol=1e-6, atol=1e-8)


@every_loss
def test_a_masked_column_is_as_if_not_there(loss):
  rng = np.random.default_rng(0)
  scores, labels = rng.normal(size=(5, 7)).astype(np.float32), rng.integers(0, 2, (5, 7))
  keep = np.array([1, 0, 1, 1, 0, 1, 0], bool)
  weights = {} if loss is losses.binary else {"weights": rng.random((5, 7)).astype(np.float32)}

  @jax.jit
  def losses_and_grad(s, y, **kwargs):
    return loss(s, y, **kwargs), jax.grad(lambda s: loss(s, y, **kwargs).sum())(s)

  masked, masked_grad = losses_and_grad(scores, labels, where=np.tile(keep, (5, 1)), **weights)
  sliced_weights = {name: w[:, keep] for name, w in weights.items()}
  sliced, sliced_grad = losses_and_grad(scores[:, keep], labels[:, keep], **sliced_weights)
  np.testing.assert_allclose(masked, sliced, rtol=1e-6)
  np.testing.assert_allclose(masked_grad[:, keep], sliced_grad, rtol=1e-5, atol=1e-7)
  assert not np.any(masked_grad[:, ~keep])


@every_loss
@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf, 1e38, -1e38])
def test_masked_scores_reach_neither_value_nor_gradient(loss, junk):
  scores = np.array([[0.5, junk, -1.0, junk], [junk] * 4], np.float32)
  labels = np.array([[1, 1, 0, 0], [1, 1, 0, 0]])
  where = np.array([[1, 0, 1, 0], [0] * 4], bool)
  value, grad = value_and_grad(loss)(scores, labels, where=where)
  np.testing.assert_allclose(value, reference(loss, scores, labels, where).sum(), rtol=1e-6)
  assert np.all(np.isfinite(grad))
  assert not np.any(np.asarray(grad)[~where])


@every_loss
def test_a_negative_of_minus_infinity_is_as_if_not_there(loss):
  labels = jnp.array([1, 0, 0])
  value, grad = value_and_grad(loss)(jnp.array([0.5, -jnp.inf, -1.0]), labels)
  np.testing.assert_allclose(value, jitted(loss)(jnp.array([0.5, -1.0]), labels[:2]), rtol=1e-6)
  assert np.all(np.isfinite(grad)) and float(grad[1]) == 0


@weighted_loss
def test_masked_weights_and_labels_are_not_read(loss):
  scores, where = np.array([[0.5, 2.0, -1.0]], np.float32), np.array([[True, False, True]])
  labels, weights = np.array([[1.0, 0.0, 0.0]], np.float32), np.array([[0.7, 0.0, 0.0]], np.float32)
  clean = jitted(loss)(scores, labels, weights=weights, where=where)
  labels, weights = np.where(where, labels, np.nan), np.where(where, weights, np.array([[0, np.nan, np.inf]]))
  junk = jitted(loss)(scores, labels, weights=weights.astype(np.float32), where=where)
  assert float(clean[0]) == float(junk[0])


@every_loss
@pytest.mark.parametrize("size", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("labels", [[1, 0, 0, 0], [1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 1]])
def test_extreme_scores_give_finite_values_and_gradients(loss, size, labels):
  signs = np.array([[1, 1, 1, 1], [-1, -1, -1, -1], [1, -1, 1, -1], [-1, 1, -1, 1]], np.float32)
  labels = np.tile(labels, (4, 1))
  value, grad = value_and_grad(loss)(signs * size, labels)
  assert np.isfinite(value)
  assert np.all(np.isfinite(grad))
  assert np.all(np.abs(grad) <= 1 + 1e-6)


@every_loss
def test_a_loss_of_thousands_has_its_full_gradient(loss):
  # The positive is 2e4 below the negative: the slope is 1 on each.
  _, grad = value_and_grad(loss)(jnp.array([-1e4, 1e4]), jnp.array([1, 0]))
  np.testing.assert_array_equal(grad, [-1.0, 1.0])


@weighted_loss
@pytest.mark.parametrize(
  "labels, weights, where",
  [
    ([0, 0, 0], None, None),  # no positive
    ([1, 0, 1], None, [False, True, False]),  # its positives are all masked
    ([1, 1, 0], None, [False] * 3),  # nothing is real
    ([1, 1, 0], [0.0, 0.0, 0.0], None),  # no positive has weight
    ([1, 0, 0], [0.0, 1.0, 1.0], None),  # weight stands on negatives only
  ],
)
def test_a_row_without_weighted_positives_is_zero_with_zero_gradient(loss, labels, weights, where):
  where = None if where is None else np.array(where)
  value, grad = value_and_grad(loss)(
    jnp.array([3.0, -1e4, 2.0]), jnp.array(labels), weights=weights and jnp.array(weights), where=where
  )
  assert float(value) == 0
  assert not np.any(grad)


@every_loss
def test_a_single_label(loss):
  where = np.array([[True], [False]])
  for label in (0, 1):
    value, grad = value_and_grad(loss)(jnp.array([[2.0], [2.0]]), jnp.array([[label], [label]]), where=where)
    # Softmax of one entry is 1 and SoftTop-k is k: they cannot be improved; binary still has its sigmoid.
    expected = {losses.binary: np.log1p(np.exp(2.0)) - 2.0 * label, soft_top_k: -label * np.log(K)}
    np.testing.assert_allclose(value, expected.get(loss, 0.0), rtol=1e-6)
    assert float(grad[1, 0]) == 0


@every_loss
def test_no_labels_at_all(loss):
  np.testing.assert_array_equal(loss(np.zeros((2, 0)), np.zeros((2, 0))), [0.0, 0.0])


@pytest.mark.slow
@every_loss
def test_leading_axes_are_batch_axes(loss):
  rng = np.random.default_rng(1)
  scores, labels = rng.normal(size=(2, 3, 5)).astype(np.float32), rng.integers(0, 2, (2, 3, 5))
  where = rng.random((2, 3, 5)) < 0.7
  whole = loss(scores, labels, where=where)
  one_row = lambda s, y, w: loss(s, y, where=w)
  mapped = jax.vmap(jax.vmap(one_row))(scores, labels, where)
  assert whole.shape == (2, 3)
  np.testing.assert_allclose(whole, mapped, rtol=1e-6)
  np.testing.assert_allclose(whole[1, 2], one_row(scores[1, 2], labels[1, 2], where[1, 2]), rtol=1e-6)


@pytest.mark.slow
@every_loss
def test_low_precision_scores_are_computed_in_float32(loss):
  rng = np.random.default_rng(2)
  scores = jnp.asarray(rng.normal(size=(4, 300)) * 10, jnp.bfloat16)
  labels = rng.integers(0, 2, (4, 300))
  value, grad = jax.value_and_grad(lambda s: loss(s, labels).sum())(scores)
  assert value.dtype == jnp.float32
  assert grad.dtype == jnp.bfloat16
  np.testing.assert_array_equal(loss(scores, labels), loss(scores.astype(jnp.float32), labels))


@every_loss
@pytest.mark.parametrize("dtype", [bool, np.int8, np.float32])
def test_labels_of_any_type(loss, dtype):
  scores, labels = np.array([[1.0, 0.0, 2.0]], np.float32), np.array([[1, 0, 1]])
  np.testing.assert_array_equal(loss(scores, labels.astype(dtype)), loss(scores, labels))


@pytest.mark.slow
@every_loss
def test_runs_under_jit_and_differentiates_twice(loss):
  scores, labels = jnp.array([0.3, -0.2, 0.9]), jnp.array([1, 0, 1])
  f = functools.partial(loss, labels=labels)
  np.testing.assert_allclose(jax.jit(f)(scores), f(scores), rtol=1e-6)
  hessian = jax.hessian(f)(scores)
  np.testing.assert_allclose(hessian, hessian.T, atol=1e-7)
  if loss is not soft_top_k:  # the others are convex in the scores
    assert np.all(np.linalg.eigvalsh(hessian) >= -1e-6)
