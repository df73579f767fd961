"""SoftTop-k: equal to binary search in float64, with the gradient of the definition, on any row."""

import functools

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loss_references import sigmoid
from loss_references import soft_top_k as reference

from xmc_jax import losses

# One program for each shape: called as they are, they would trace their search again each time.
soft_top_k, log_soft_top_k, soft_top_k_loss = map(
  jax.jit, (losses.soft_top_k, losses.log_soft_top_k, losses.soft_top_k_loss)
)
jitted_jacobian = jax.jit(
  jax.vmap(jax.jacobian(lambda scores, k, alpha: soft_top_k(scores, k, alpha=alpha)), in_axes=(0, 0, None))
)
jitted_grad = jax.jit(
  jax.value_and_grad(lambda scores, labels, k: jnp.sum(soft_top_k_loss(scores, labels, k, alpha=2.0)))
)


def reference_jacobian(scores, k, alpha=1.0):
  z = reference(scores, k, alpha)
  v = alpha * z * (1 - z)
  return np.diag(v) - np.outer(v, v) / max(v.sum(), 1e-300)


@jax.jit
@functools.partial(jax.grad, has_aux=True)
def grad_and_z(scores, k, weights, where=None):
  """The gradient of Σ w log z over the real entries, and z and log z."""
  log_z = log_soft_top_k(scores, k, where=where)
  total = jnp.sum(jnp.where(jnp.isfinite(log_z), weights * log_z, 0))
  return total, (soft_top_k(scores, k, where=where), log_z)


def rows_of(kind):
  """Rows `[4, 200]` float32 of some kind."""
  rng = np.random.default_rng(0)
  normal = rng.standard_normal((4, 200))
  columns = np.arange(200)
  rows = {
    "normal": normal,
    "flat": 0.01 * normal,
    "spread": 30 * normal,
    "1e4": 1e4 * rng.uniform(-1, 1, (4, 200)),
    "ties": np.round(2 * normal),
    "equal": np.full((4, 200), 0.3),
    "gap of 10": normal + 10 * (columns < 5),
    "gap of 30": normal + 30 * (columns < 5),
    "gap of 400": normal + 400 * (columns < 5),
    "gap of 1e4": normal + 1e4 * (columns < 5) - 1e4 * (columns > 150),
    "far from 0": normal + 1e4,
    "cauchy": rng.standard_cauchy((4, 200)),
  }
  return rows[kind].astype(np.float32)


KINDS = [
  *("normal", "flat", "spread", "1e4", "ties", "equal", "far from 0", "cauchy"),
  *("gap of 10", "gap of 30", "gap of 400", "gap of 1e4"),
]
every_kind = pytest.mark.parametrize("kind", KINDS)
K_OF_ROWS = [np.array(k, np.float32) for k in ([1, 2, 5, 6], [0.5, 4.99, 5.01, 100], [151, 180, 199, 199.5])]

some_rows = hnp.arrays(np.float32, (3, 6), elements=st.floats(-20, 20, width=32))
some_k = hnp.arrays(np.float32, 3, elements=st.floats(0.125, 5.875, width=32))
some_masks = st.permutations([(0, 0, 0, 0, 0, 0), (0, 1, 0, 0, 1, 0), (1, 1, 0, 1, 0, 1)])


@every_kind
@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_equals_binary_search(kind, alpha):
  scores = rows_of(kind)
  for k in K_OF_ROWS:
    expected = [reference(row, row_k, alpha) for row, row_k in zip(scores, k)]
    np.testing.assert_allclose(soft_top_k(scores, k, alpha=alpha), expected, atol=3e-7)


@every_kind
def test_jacobian_equals_its_formula(kind):
  scores = rows_of(kind)[:, 130:160]  # the gaps are among these, or there is none
  for k in ([1, 2, 5, 21], [0.5, 4.5, 20.99, 29.5]):
    k = np.array(k, np.float32)
    expected = [reference_jacobian(row, row_k, 2.0) for row, row_k in zip(scores, k)]
    np.testing.assert_allclose(jitted_jacobian(scores, k, 2.0), expected, atol=1e-6)


@hypothesis.given(scores=some_rows, k=some_k)
def test_equals_binary_search_on_any_row(scores, k):
  got = soft_top_k(scores, k)
  np.testing.assert_allclose(got, [reference(row, row_k) for row, row_k in zip(scores, k)], atol=3e-7)
  np.testing.assert_allclose(jnp.sum(got, axis=1), k, rtol=1e-6)
  np.testing.assert_allclose(jnp.exp(log_soft_top_k(scores, k)), got, atol=3e-7)


@hypothesis.given(scores=some_rows, k=some_k, where=some_masks)
@hypothesis.settings(max_examples=10)
def test_a_masked_entry_is_as_if_not_there(scores, k, where):
  weights = jnp.arange(6) + 1.0

  for row in range(3):
    keep = np.array(where[row], bool)
    junk = np.where(keep, scores[row], np.nan)
    grad, (z, log_z) = grad_and_z(junk, k[row], weights, where=keep)
    sliced_grad, (sliced, sliced_log) = grad_and_z(scores[row, keep], k[row], weights[keep])
    np.testing.assert_allclose(z[keep], sliced, atol=3e-7)
    np.testing.assert_allclose(log_z[keep], sliced_log, rtol=1e-6, atol=3e-7)
    np.testing.assert_allclose(grad[keep], sliced_grad, rtol=1e-5, atol=1e-5)
    assert not np.any(np.concatenate([z[~keep], grad[~keep]]))
    assert np.all(np.isneginf(log_z[~keep]))


def test_cotangents_of_masked_entries_are_not_read():
  scores, where = jnp.array([0.5, 0.2, -1.0]), jnp.array([True, False, True])
  for function in (soft_top_k, log_soft_top_k):
    _, pull_back = jax.vjp(lambda s, f=function: f(s, 1, where=where), scores)
    (clean,), (dirty,) = pull_back(jnp.array([1.0, 0.0, 2.0])), pull_back(jnp.array([1.0, 7.0, 2.0]))
    np.testing.assert_array_equal(dirty, clean)
    assert float(clean[1]) == 0


@pytest.mark.parametrize("gap", [30.0, 60.0, 400.0, 1e4])
def test_a_gap_is_balanced_by_those_who_border_it(gap):
  # Two above and three below miss equally much: 2 e^-(g/2 + t) = 3 e^-(g/2 - t), t = log(2 / 3) / 2.
  scores = jnp.array([gap, gap, gap + 50, 0, 0, 0, -50]) - gap / 2
  log_z = log_soft_top_k(scores, 3)
  np.testing.assert_allclose(log_z[3:6], -gap / 2 + np.log(2 / 3) / 2, rtol=1e-6, atol=1e-5)
  # One of these as the positive is pulled up against the border: one half on each side of it.
  grad = jax.grad(lambda s: soft_top_k_loss(s, jnp.array([0, 0, 0, 1, 0, 0, 0]), 3))(scores)
  np.testing.assert_allclose(grad, [1 / 4, 1 / 4, 0, 1 / 6 - 1, 1 / 6, 1 / 6, 0], atol=1e-4)


def test_large_and_uneven_scores_keep_their_digits():
  scores = np.array([1e4, 0.3, 0.2, 0.1, -1e4], np.float32)
  np.testing.assert_allclose(soft_top_k(scores, 2), [1, *reference(scores[1:4], 1), 0], atol=3e-7)


def test_the_ends_of_k():
  scores = np.array([[3.0, 1.0, -2.0]] * 5, np.float32)
  k = np.array([3, 9, 0, -1, 2.999], np.float32)
  z = soft_top_k(scores, k, alpha=2.0)
  lowest, highest = (
    sigmoid(2 * (scores[0] + 2) + 10),
    sigmoid(2 * (scores[0] - 3) - 10),
  )
  np.testing.assert_allclose(z[:4], [lowest, lowest, highest, highest], atol=3e-7)
  np.testing.assert_allclose(jnp.sum(z[4]), k[4], rtol=1e-6)
  grad = jax.grad(lambda s: jnp.sum(log_soft_top_k(s, k, alpha=2.0)))(scores)
  assert np.all(np.isfinite(grad))
  np.testing.assert_allclose(jnp.sum(grad, axis=1), 0, atol=1e-5)


def test_many_equal_scores_lie_outside_the_papers_bracket():
  # σ(-10) of 300,000 would be 13.6.
  np.testing.assert_allclose(soft_top_k(np.zeros(300_000, np.float32), 5), 5 / 300_000, rtol=1e-6)
  scores = np.where(np.arange(300_000) % 2, 0.0, 1e-3).astype(np.float32)
  np.testing.assert_allclose(np.asarray(soft_top_k(scores, 5), np.float64).sum(), 5, rtol=2e-6)


def test_one_label_and_no_label():
  np.testing.assert_allclose(soft_top_k([[2.0], [2.0]], jnp.array([0.25, 1.0])), [[0.25], [sigmoid(10.0)]])
  for where in (None, jnp.zeros((2, 3), bool)):
    scores = jnp.full((2, 3 if where is not None else 0), 7.0)
    value, grad = jax.value_and_grad(lambda s, w=where: jnp.sum(soft_top_k(s, 2, where=w)))(scores)
    assert float(value) == 0
    assert not np.any(grad)


@pytest.mark.slow
def test_leading_axes_k_and_alpha_of_rows_and_vmap():
  rng = np.random.default_rng(1)
  scores, where = rng.standard_normal((2, 3, 9), np.float32), rng.random((2, 3, 9)) < 0.8
  k, alpha = np.array([[1, 2, 3], [0.5, 5, 9]], np.float32), np.array([[1, 2, 4], [8, 1, 2]], np.float32)
  one_row = lambda s, k, a, w: soft_top_k(s, k, alpha=a, where=w)
  whole = jax.jit(one_row)(scores, k, alpha, where)
  np.testing.assert_allclose(
    jax.vmap(jax.vmap(one_row))(scores, k, alpha, where), whole, rtol=1e-5, atol=1e-6
  )
  for place in np.ndindex(2, 3):
    np.testing.assert_allclose(
      one_row(scores[place], float(k[place]), float(alpha[place]), where[place]), whole[place], atol=1e-6
    )


def test_k_and_alpha_are_constants_for_the_gradient():
  grads = jax.grad(lambda s, k, a: soft_top_k(s, k, alpha=a)[0], argnums=(1, 2))(jnp.arange(4.0), 2.0, 1.5)
  assert [float(g) for g in grads] == [0, 0]


def test_double_precision_is_computed_in_float64():
  with jax.enable_x64(True):
    scores = rows_of("spread").astype(np.float64)
    got = soft_top_k(scores, 5)
    assert got.dtype == jnp.float64
    np.testing.assert_allclose(got, [reference(row, 5) for row in scores], atol=1e-13)


@every_kind
@pytest.mark.parametrize("k", [1, 5, 200])
def test_finite_on_any_row(kind, k):
  scores = rows_of(kind)
  labels = np.zeros((4, 200))
  labels[:3, [0, 100, 199]] = 1
  value, grad = jitted_grad(scores, labels, float(k))
  assert np.isfinite(value) and np.all(np.isfinite(grad))
  assert np.all(np.abs(grad) <= 2 + 1e-5)
  np.testing.assert_allclose(jnp.sum(grad, axis=1), 0, atol=1e-5)
  assert not np.any(grad[3])


def test_the_loss_by_hand():
  # σ(log 3) = 3/4 twice and σ(-log 3) = 1/4 twice sum to 2.
  scores = np.log(np.array([[3, 3, 1 / 3, 1 / 3]] * 3, np.float32))
  labels = [[1, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]
  expected = [-np.log(3 / 4), -(np.log(3 / 4) + np.log(1 / 4)) / 2, 0]
  np.testing.assert_allclose(soft_top_k_loss(scores, labels, 2), expected, rtol=1e-6)
  grad = jax.grad(lambda s: soft_top_k_loss(s, labels, 2)[0])(scores)[
    0
  ]  # all v are equal: -(1/4) (e_0 - 1/4)
  np.testing.assert_allclose(grad, [-3 / 16, 1 / 16, 1 / 16, 1 / 16], rtol=1e-5)


def test_the_search_keeps_no_copy_of_the_scores():
  scores = jax.ShapeDtypeStruct((256, 20_000), jnp.float32)
  compiled = jax.jit(lambda s: soft_top_k(s, 5)).lower(scores).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < 4 * scores.size
