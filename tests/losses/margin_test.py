"""The margin loss: numbers worked by hand, the definition in loops, and what its gradient lets through."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loss_references import margin_row

from xmc_jax.losses import margin, margin_from_positives


def random_rows(seed, num_rows=6, num_labels=12, spread=0.3, positive_rate=0.4):
  """Scores, labels, weights and `where`, all `[num_rows, num_labels]`; some labels have weight 0."""
  rng = np.random.default_rng(seed)
  shape = (num_rows, num_labels)
  labels = rng.random(shape) < positive_rate
  weights = rng.random(shape) * (rng.random(shape) < 0.8)
  return spread * rng.standard_normal(shape), labels, weights, rng.random(shape) < 0.8


def real_parts(scores, labels, weights, where):
  return [(s[r], y[r], w[r]) for s, y, w, r in zip(scores, labels, weights, where)]


CASES = [
  {},
  {"num_negatives": 3},
  {"num_positives": 2},
  {"num_positives": 3, "num_negatives": 5, "margin": 0.2, "weight_temperature": 1.0},
  {"num_positives": 99, "num_negatives": 99},
  {"num_negatives": 1, "num_positives": 1},
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())) or "-")


def test_hand_worked_rows():
  scores = [[0.5, 0.45, 0.3, 0.0], [0.5, 0.45, 0.0, 0.3], [0.9, 0.5, 0.1, 0.0], [0.5, 0.45, 0.0, 0.3]]
  labels = [[1, 0, 0, 0], [1, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]]
  share = 1 / (1 + np.exp(-1.5))  # of 0.45 beside 0.3, at temperature 0.1
  expected = [
    (share * 0.25 + (1 - share) * 0.1) / 3,  # 0.0 does not violate, but is one of the three
    # 0.5 is violated by 0.45 alone. 0.3 is by 0.45 only as well: 0.0 is on the border, 0 itself.
    (0.25 / 2 + 0.45 / 2) / 2,
    0.0,
    0.0,
  ]
  np.testing.assert_allclose(margin(scores, labels), expected, rtol=1e-5)


def test_without_weights_pairs_are_summed_as_printed():
  """DEXA, eq. 5 and 6: 0.45 and 0.3 violate 0.5 by 0.25 and 0.1, and 0.4 by 0.35 and 0.2."""
  scores, labels = jnp.array([0.5, 0.45, 0.3, 0.0]), jnp.array([1, 0, 0, 0])
  value, grad = jax.value_and_grad(lambda s: margin(s, labels, weight_temperature=0.0))(scores)
  np.testing.assert_allclose(value, (0.25 + 0.1) / 3, rtol=1e-5)
  np.testing.assert_allclose(grad, np.array([-2, 1, 1, 0]) / 3, rtol=1e-5)
  pairs = margin([0.5, 0.4, 0.45, 0.3], [1, 1, 0, 0], weight_temperature=0.0)
  np.testing.assert_allclose(pairs, (0.25 + 0.1 + 0.35 + 0.2) / 2 / 2, rtol=1e-5)


def test_the_mean_over_all_pairs_worked_by_hand():
  """DEXA's module II: 3 x 5 whatever a row has, so that a positive counts as much in any row."""
  options = {"margin": 0.2, "num_positives": 3, "num_negatives": 5, "weight_temperature": 1.0}
  # One positive, 0.5, and two negatives: 0.4 violates by 0.1, 0.0 does not.
  one = np.array([0.5, 0.4, 0.0]), [1, 0, 0]
  np.testing.assert_allclose(margin(*one, **options), 0.1 / 2, rtol=1e-5)
  np.testing.assert_allclose(margin(*one, **options, margin_mean="all"), 0.1 / (3 * 5), rtol=1e-5)
  # Four positives, of which the lowest three count, and six negatives, all level: nothing is missing.
  full = np.array([0.9, 0.5, 0.5, 0.5, *[0.4] * 6]), [1] * 4 + [0] * 6
  for kind in ("existing", "all"):
    np.testing.assert_allclose(margin(*full, **options, margin_mean=kind), 0.1 / 5, rtol=1e-5)
  # Weights: of two positives, three times as much on the first; together they are two thirds of three.
  scores, labels, weights = np.array([0.5, 0.4, 0.4]), [1, 1, 0], np.array([3, 1, 0], np.float32)
  found = margin(scores, labels, weights=weights, **options, margin_mean="all")
  np.testing.assert_allclose(found, (0.75 * 0.1 + 0.25 * 0.2) * (2 / 3) / 5, rtol=1e-5)


@every_case
def test_equals_the_definition(case):
  loss = jax.jit(lambda s, y, w, where: margin(s, y, weights=w, where=where, **case))
  for spread in (0.3, 5.0):
    rows = random_rows(0, 20, spread=spread)
    expected = [margin_row(*row, **case) for row in real_parts(*rows)]
    np.testing.assert_allclose(loss(*rows), expected, rtol=2e-5, atol=1e-6)
    with jax.enable_x64(True):
      got = loss(*rows)
      assert got.dtype == jnp.float64
      np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("case", CASES[:4], ids=["-", "3", "2", "3-5"])
@pytest.mark.parametrize("differentiable", [False, True])
def test_gradient_equals_central_differences_of_the_definition(case, differentiable):
  """Under a mask, whose scores are not read."""
  scores, labels, weights, where = random_rows(1)
  step = 1e-6

  def slope(row, column):
    nudge = step * (np.arange(len(row[0])) == column)
    fixed = None if differentiable else row[0]
    higher, lower = (
      margin_row(row[0] + sign * nudge, *row[1:], **case, weights_from=fixed) for sign in (1, -1)
    )
    return (higher - lower) / (2 * step)

  with jax.enable_x64(True):
    options = {"weights": weights, "where": where, "differentiable_weights": differentiable, **case}
    grad = jax.jit(jax.grad(lambda s: margin(s, labels, **options).sum()))(np.where(where, scores, np.nan))
  expected = np.zeros(scores.shape)
  for found, keep, row in zip(expected, where, real_parts(scores, labels, weights, where)):
    found[keep] = [slope(row, column) for column in range(keep.sum())]
  np.testing.assert_allclose(grad, expected, rtol=1e-6, atol=1e-9)
  assert np.any(np.abs(expected) > 0.01)


@pytest.mark.parametrize("case", CASES[2:5], ids=["2", "3-5", "99-99"])
def test_margin_of_positives_and_pool_apart(case):
  scores, labels, weights, where = random_rows(3)
  # The positives in another order, among entries of weight 0 that must not be read.
  order = np.argsort(~(labels & where), axis=1, kind="stable")[:, ::-1]
  take = lambda x: np.take_along_axis(x, order, axis=1)
  padding = ~take(labels & where)
  options = {"differentiable_weights": True, **case}

  def apart(s):
    positive_scores = jnp.where(padding, jnp.nan, jnp.take_along_axis(s, order, axis=1))
    pool = jnp.where(where & ~labels, s, jnp.inf)
    apart_weights = np.where(padding, 0, take(weights))
    return margin_from_positives(positive_scores, apart_weights, pool, where & ~labels, **options)

  def value_and_grad(loss):
    return jax.jit(jax.value_and_grad(lambda s: loss(s).sum()))(scores)

  with jax.enable_x64(True):
    got = value_and_grad(apart)
    expected = value_and_grad(lambda s: margin(s, labels, weights=weights, where=where, **options))
  for one, other in zip(got, expected):
    np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


def test_low_precision_is_computed_in_float32():
  scores, labels, _, _ = random_rows(4)
  low = jnp.asarray(scores, jnp.bfloat16)
  got = margin_from_positives(low, labels / 3, low, ~labels)
  assert got.dtype == jnp.float32
  exact = low.astype(jnp.float32)
  np.testing.assert_array_equal(got, margin_from_positives(exact, labels / 3, exact, ~labels))


def test_a_positive_of_weight_zero_is_neither_positive_nor_negative():
  labels, weights = jnp.array([1, 1, 0]), jnp.array([1.0, 0.0, 0.0])
  for num_positives in (0, 2):
    value, grad = jax.value_and_grad(
      lambda s, n=num_positives: margin(s, labels, weights=weights, num_positives=n)
    )(jnp.array([0.5, -9.0, 0.45]))
    np.testing.assert_allclose(value, 0.25, rtol=1e-6)
    np.testing.assert_allclose(grad, [-1.0, 0.0, 1.0])


@functools.cache
def value_and_grads(num_positives):
  """Jitted `margin_from_positives` and its gradients by both kinds of scores."""
  options = {"num_positives": num_positives, "differentiable_weights": True}
  loss = lambda p, s, weights, negative: margin_from_positives(p, weights, s, negative, **options)
  return jax.jit(jax.value_and_grad(loss, (0, 1)))


@pytest.mark.parametrize("num_positives", [0, 1])
@pytest.mark.parametrize(
  "positives, weights, pool, negative",
  [
    ([1e4, -1e4], [0.5, 0.5], [1e4, -1e4, 0.0], [True] * 3),
    ([-1e4, np.nan], [1.0, 0.0], [1e4, 1e4, 1e4], [True] * 3),
    ([np.nan, np.inf], [0.0, 0.0], [1.0, 2.0, np.nan], [True, True, False]),  # no positive
    ([np.nan, 0.1], [0.0, 1.0], [np.nan, np.inf, 0.0], [False, False, True]),
    ([0.1, 0.2], [0.5, 0.5], [np.nan, -np.inf, 9.0], [False] * 3),  # no negative
    ([0.1, 0.2], [0.5, 0.5], [-np.inf, 0.2, -np.inf], [True] * 3),
    ([], [], [1.0, 2.0, 3.0], [True] * 3),
    ([1.0], [1.0], [], []),
    ([], [], [], []),
  ],
)
def test_extremes_are_finite(positives, weights, pool, negative, num_positives):
  floats = [np.array(x, np.float32) for x in (positives, pool, weights)]
  value, grads = value_and_grads(num_positives)(*floats, np.array(negative, bool))
  assert value.dtype == jnp.float32 and np.isfinite(value)
  assert all(np.all(np.isfinite(grad)) and np.all(np.abs(grad) <= 1 + 1e-6) for grad in grads)
  if not any(weights) or not any(negative):
    assert not value and not any(np.any(grad) for grad in grads)


@pytest.mark.parametrize(
  "counts, message",
  [
    ({"num_negatives": 0}, "num_negatives must be >= 1"),
    ({"num_positives": -1}, "num_negatives must be >= 1"),
    ({"margin_mean": "all"}, "margin_mean = 'all' needs num_positives >= 1"),
  ],
)
def test_impossible_counts_are_refused(counts, message):
  with pytest.raises(ValueError, match=message):
    margin([1.0, 0.0], [1, 0], **counts)


@pytest.mark.slow
@pytest.mark.parametrize("differentiable", [False, True])
def test_memory_is_linear_in_the_labels(differentiable):
  # P · η entries would be 250 rows of L here; the compiled gradient has a few.
  num_labels = 10_000
  labels = jnp.ones(num_labels).at[: num_labels // 2].set(0)
  options = {"num_negatives": 500, "differentiable_weights": differentiable}
  step = jax.jit(jax.grad(lambda s: margin(s, labels, **options)))
  memory = step.lower(jnp.zeros(num_labels)).compile().memory_analysis()
  assert memory.temp_size_in_bytes < 20 * 4 * num_labels
