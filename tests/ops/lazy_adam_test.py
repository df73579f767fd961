"""Row-sparse Adam: Adam on the rows that a step touches, and nothing at all on the others."""

import functools

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from xmc_jax.distributed import sharding as meshes
from xmc_jax.ops import lazy_adam

MESHES = [(1, 1), (2, 1), (1, 4), (2, 4)]
NUM_ROWS, WIDTH = 16, 3


class Reference:
  """Lazy Adam in float64, row by row."""

  def __init__(self, table):
    self.table = table.astype(np.float64)
    self.mean, self.square = np.zeros_like(self.table), np.zeros_like(self.table)

  def step(self, ids, rows, count, learning_rate, b1=0.9, b2=0.999, epsilon=1e-8):
    for row in set(ids[ids >= 0].tolist()):
      g = sum(g.astype(np.float64) for i, g in zip(ids, rows) if i == row)
      self.mean[row] = b1 * self.mean[row] + (1 - b1) * g
      self.square[row] = b2 * self.square[row] + (1 - b2) * g * g
      root = np.sqrt(self.square[row] / (1 - b2**count))
      self.table[row] -= learning_rate * self.mean[row] / (1 - b1**count) / (root + epsilon)


def table_of(num_rows=NUM_ROWS, width=WIDTH, seed=0):
  return np.random.default_rng(seed).standard_normal((num_rows, width)).astype(np.float32)


@functools.cache
def make_step(mesh=None):
  """A jitted step on `(table, moments)`, both donated; it also returns the rows that it took."""

  @functools.partial(jax.jit, donate_argnums=(0, 1))
  def step(table, moments, ids, gradients, count, learning_rate):
    rows = lazy_adam.take(table, ids, mesh)
    merged = lazy_adam.merge(ids, gradients)
    options = {"count": count, "learning_rate": learning_rate, "mesh": mesh}
    return *lazy_adam.adam(table, moments, *merged, **options), rows

  return step


def train(table, batches, learning_rate=0.1, mesh=None):
  """All steps; the table, its moments and the rows that were taken, as numpy."""
  sharding = NamedSharding(mesh, P(meshes.LABEL_ROWS)) if mesh else None
  table = jax.device_put(table, sharding)
  moments, taken = lazy_adam.init(table), []
  for count, batch in enumerate(batches, 1):
    batch = jax.device_put(batch, meshes.replicated(mesh)) if mesh else batch
    table, moments, rows = make_step(mesh)(table, moments, *batch, jnp.int32(count), learning_rate)
    taken.append(np.asarray(rows))
  return np.asarray(table), jax.tree.map(np.asarray, moments), taken


def random_batches(num_steps, num_ids, seed=0):
  """Ids from -1 on, many of them twice, and a gradient for each: large ones where the id is -1."""
  rng = np.random.default_rng(seed)
  for _ in range(num_steps):
    ids = rng.integers(-1, NUM_ROWS, num_ids, dtype=np.int32)
    rows = rng.standard_normal((num_ids, WIDTH)).astype(np.float32)
    yield ids, np.where(ids[:, None] < 0, np.float32(1e9), rows)


def test_hand_worked_steps():
  table = np.zeros((3, 1), np.float32)
  # The first step of Adam is the rate, whatever the gradient. In the second, row 2 has had
  # no gradient yet: m = 0.1 g / (1 - 0.81), v = 0.001 g^2 / (1 - 0.998001).
  batches = [(np.array([0, -1], np.int32), np.array([[4.0], [5.0]], np.float32))]
  batches.append((np.array([2, 2], np.int32), np.array([[-1.0], [-2.0]], np.float32)))
  table, moments, _ = train(table, batches)
  second = 0.1 * (0.1 / 0.19) / np.sqrt(0.001 / 0.001999)
  np.testing.assert_allclose(table[:, 0], [-0.1, 0.0, second], rtol=1e-4)
  np.testing.assert_allclose(moments.mean[:, 0], [0.4, 0.0, -0.3], rtol=1e-5)
  np.testing.assert_allclose(moments.square[:, 0], [0.016, 0.0, 0.009], rtol=1e-4)


def test_equals_adam_of_optax_where_every_step_touches_all_rows():
  start, rng = table_of(), np.random.default_rng(1)
  gradients = [rng.standard_normal((NUM_ROWS, WIDTH)).astype(np.float32) for _ in range(50)]
  orders = [rng.permutation(NUM_ROWS).astype(np.int32) for _ in gradients]
  got, moments, _ = train(start, [(ids, g[ids]) for ids, g in zip(orders, gradients)], 0.01)
  optimiser = optax.adam(0.01)

  @jax.jit
  def dense_step(table, state, gradient):
    updates, state = optimiser.update(gradient, state)
    return optax.apply_updates(table, updates), state

  table, state = jnp.asarray(start), optimiser.init(jnp.asarray(start))
  for gradient in gradients:
    table, state = dense_step(table, state, gradient)
  np.testing.assert_allclose(got, table, rtol=1e-6, atol=1e-6)
  np.testing.assert_allclose(moments.mean, state[0].mu, rtol=1e-6, atol=1e-7)
  np.testing.assert_allclose(moments.square, state[0].nu, rtol=1e-6)


@hypothesis.given(
  ids=hnp.arrays(np.int32, (6, 8), elements=st.integers(-1, NUM_ROWS - 1)), seed=st.integers(0, 1000)
)
def test_equals_lazy_adam_in_float64(ids, seed):
  start, rng = table_of(), np.random.default_rng(seed)
  batches = [(i, rng.standard_normal((8, WIDTH)).astype(np.float32)) for i in ids]
  got, moments, taken = train(start, batches)
  reference = Reference(start)
  for count, (batch, rows) in enumerate(zip(batches, taken), 1):
    expected = np.where(batch[0][:, None] < 0, 0, reference.table[batch[0]])
    np.testing.assert_allclose(rows, expected, rtol=1e-4, atol=1e-4)
    reference.step(*batch, count, 0.1)
  np.testing.assert_allclose(got, reference.table, rtol=1e-4, atol=1e-4)
  np.testing.assert_allclose(moments.mean, reference.mean, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(moments.square, reference.square, rtol=1e-4, atol=1e-9)
  untouched = np.setdiff1d(np.arange(NUM_ROWS), ids)
  np.testing.assert_array_equal(got[untouched], start[untouched])


def test_untouched_rows_and_their_moments_keep_every_bit():
  sharded = meshes.make(2, 4)
  for mesh in (None, sharded):
    first = list(random_batches(3, 40))
    before = train(table_of(), first, mesh=mesh)
    after = train(table_of(), [*first, *random_batches(1, 4, seed=1)], mesh=mesh)
    (ids, _) = next(random_batches(1, 4, seed=1))
    untouched = np.setdiff1d(np.arange(NUM_ROWS), ids)
    assert 0 < len(untouched) < NUM_ROWS
    for old, new in zip(jax.tree.leaves(before[:2]), jax.tree.leaves(after[:2])):
      np.testing.assert_array_equal(new[untouched], old[untouched])
      assert not np.any((new == old).all(axis=1)[np.setdiff1d(ids, [-1])])


@pytest.mark.parametrize("mesh", [None, (2, 4)])
def test_no_ids_change_nothing(mesh):
  mesh = mesh and meshes.make(*mesh)
  nothing = np.full(5, -1, np.int32), np.full((5, WIDTH), np.nan, np.float32)
  table, moments, (rows,) = train(table_of(), [nothing], mesh=mesh)
  np.testing.assert_array_equal(table, table_of())
  assert not np.any(moments.mean) and not np.any(moments.square) and not np.any(rows)


@pytest.mark.slow
@pytest.mark.parametrize("shape", MESHES)
@pytest.mark.parametrize("num_ids", [7, 40])
def test_meshes_agree(shape, num_ids):
  batches = list(random_batches(4, num_ids))
  expected = train(table_of(), batches)
  got = train(table_of(), batches, mesh=meshes.make(*shape))
  for one, many in zip(jax.tree.leaves(expected), jax.tree.leaves(got)):
    np.testing.assert_allclose(many, one, rtol=1e-6, atol=1e-7)


def test_take_stands_inside_a_differentiated_step():
  mesh, ids = meshes.make(2, 2), jnp.array([3, -1, 3])
  table = jax.device_put(table_of(), NamedSharding(mesh, P(meshes.LABEL_ROWS)))

  @jax.jit
  def loss(scale, table):
    return jax.value_and_grad(lambda s: jnp.sum(s * lazy_adam.take(table, ids, mesh)))(scale)

  value, grad = loss(2.0, table)
  np.testing.assert_allclose(value, 4 * table_of()[3].sum(), rtol=1e-5)
  np.testing.assert_allclose(grad, 2 * table_of()[3].sum(), rtol=1e-5)


@hypothesis.given(
  ids=hnp.arrays(np.int32, st.sampled_from([0, 1, 5]), elements=st.integers(-1, 4)), seed=st.integers(0, 99)
)
def test_merge_equals_a_dictionary_of_sums(ids, seed):
  rows = np.random.default_rng(seed).integers(-9, 9, (len(ids), 2)).astype(np.float32)
  rows[ids < 0] = np.nan  # never read
  sums = {i: rows[ids == i].sum(axis=0) for i in sorted({*ids.tolist()} - {-1})}
  got_ids, got = lazy_adam.merge(jnp.asarray(ids), jnp.asarray(rows))
  assert got_ids.dtype == jnp.int32 and got.shape == rows.shape
  padding = len(ids) - len(sums)
  np.testing.assert_array_equal(got_ids, [*sums, *[-1] * padding])
  np.testing.assert_array_equal(got, np.reshape([*sums.values(), *np.zeros((padding, 2))], rows.shape))


@pytest.mark.parametrize("shape", [None, (2, 4)])
def test_a_step_is_in_place_and_traced_once(shape):
  mesh = shape and meshes.make(*shape)
  num_rows, width, num_ids = 8000, 64, 100
  split = NamedSharding(mesh, P(meshes.LABEL_ROWS)) if mesh else None
  everywhere = meshes.replicated(mesh) if mesh else None

  @functools.partial(jax.jit, donate_argnums=(0, 1))
  def step(table, moments, ids, targets, count):
    rows = lazy_adam.take(table, ids, mesh)
    loss, gradients = jax.value_and_grad(lambda rows: jnp.sum((rows - targets) ** 2))(rows)
    merged = lazy_adam.merge(ids, gradients)
    return *lazy_adam.adam(table, moments, *merged, count=count, learning_rate=0.1, mesh=mesh), loss

  table = jax.device_put(table_of(num_rows, width), split)
  moments, rng = lazy_adam.init(table), np.random.default_rng(0)
  sharding, targets = table.sharding, jax.device_put(table_of(num_ids, width), everywhere)
  for count in range(1, 4):
    ids = jax.device_put(rng.integers(-1, num_rows, num_ids, dtype=np.int32), everywhere)
    inputs = (table, moments, ids, targets, jax.device_put(jnp.int32(count), everywhere))
    if count == 1:
      memory = step.lower(*inputs).compile().memory_analysis()
    table, moments, _ = step(*inputs)
    assert all(x.sharding.is_equivalent_to(sharding, 2) for x in (table, *moments))
  assert step._cache_size() == 1
  assert memory.temp_size_in_bytes < 8 * targets.nbytes  # the rows of the batch, a few times
  assert memory.alias_size_in_bytes == 3 * table.addressable_shards[0].data.nbytes


def test_moments_lie_as_the_table_does():
  mesh = meshes.make(2, 4)
  sharding = NamedSharding(mesh, P(meshes.LABEL_ROWS))
  table = jax.device_put(table_of().astype(jnp.bfloat16), sharding)
  moments = lazy_adam.init(table)
  for moment in moments:
    assert moment.sharding.is_equivalent_to(sharding, 2) and moment.dtype == jnp.float32
    assert moment.shape == table.shape and not np.any(moment)
  pointers = [m.addressable_shards[0].data.unsafe_buffer_pointer() for m in moments]
  assert pointers[0] != pointers[1]  # or they could not be donated both
  assert jax.eval_shape(lazy_adam.init, table) == jax.eval_shape(lambda: moments)


@pytest.mark.parametrize("shape", MESHES)
def test_put_sets_the_rows_of_its_ids_alone(shape):
  table, rows = table_of(), table_of(4, seed=1)
  mesh = meshes.make(*shape)
  placed = jax.device_put(table, NamedSharding(mesh, P(meshes.LABEL_ROWS)))
  expected = table.copy()
  expected[[15, 0, 7]] = rows[[0, 1, 3]]
  ids = jnp.array([15, 0, -1, 7])
  found = jax.jit(lambda table: lazy_adam.put(table, ids, rows, mesh if mesh.size > 1 else None))(placed)
  np.testing.assert_array_equal(found, expected)
