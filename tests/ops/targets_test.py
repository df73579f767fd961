"""Column ids, scattered: by hand, with padding and repetitions."""

import jax.numpy as jnp
import numpy as np

from xmc_jax.contract import Batch
from xmc_jax.ops.targets import dense_targets, scatter_columns


def _batch(**fields):
  return Batch(
    **{"rows": np.arange(2), "queries": (), "labels": (), "excluded": np.full((2, 1), -1, np.int32), **fields}
  )


def test_scatter_sums_what_falls_on_the_same_column():
  columns = np.array([[0, 2, 2], [-1, -1, 1]], np.int32)
  values = np.array([[1.0, 2.0, 3.0], [9.0, 9.0, 4.0]], np.float32)
  np.testing.assert_array_equal(scatter_columns(columns, values, 3), [[1, 0, 5], [0, 4, 0]])


def test_scatter_of_nothing():
  nothing = scatter_columns(np.full((2, 3), -1, np.int32), np.ones((2, 3), np.float32), 4)
  np.testing.assert_array_equal(nothing, np.zeros((2, 4)))


def test_dense_targets_by_hand():
  labels, weights, where = dense_targets(
    _batch(
      columns=np.array([7, 3, -1, 9], np.int32),
      positives=np.array([[0, 3, -1], [1, -1, -1]], np.int32),
      weights=np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]], np.float32),
      excluded=np.array([[1, -1], [3, 0]], np.int32),
    )
  )
  np.testing.assert_array_equal(labels, [[1, 0, 0, 1], [0, 1, 0, 0]])  # column 0: true, though not drawn
  np.testing.assert_array_equal(weights, [[0, 0, 0, 1], [0, 1, 0, 0]])
  np.testing.assert_array_equal(where, [[True, False, False, True], [False, True, False, False]])
  assert labels.dtype == weights.dtype == jnp.float32 and where.dtype == bool


def test_a_repeated_positive_counts_once_as_a_label_and_keeps_its_whole_weight():
  labels, weights, _ = dense_targets(
    _batch(
      columns=np.array([7, 3], np.int32),
      positives=np.array([[1, 1], [-1, -1]], np.int32),
      weights=np.array([[0.5, 0.5], [0, 0]], np.float32),
    )
  )
  np.testing.assert_array_equal(labels, [[0, 1], [0, 0]])
  np.testing.assert_array_equal(weights, [[0, 1], [0, 0]])


def test_the_weight_of_padding_goes_nowhere():
  _, weights, _ = dense_targets(
    _batch(
      columns=np.array([7, 3], np.int32),
      positives=np.array([[-1, 0], [-1, -1]], np.int32),
      weights=np.array([[5.0, 1.0], [5.0, 5.0]], np.float32),
    )
  )
  np.testing.assert_array_equal(weights, [[1, 0], [0, 0]])


def test_one_pair_excluded_twice():
  _, _, where = dense_targets(
    _batch(
      columns=np.array([7, 3], np.int32),
      positives=np.full((2, 1), -1, np.int32),
      weights=np.zeros((2, 1), np.float32),
      excluded=np.array([[1, 1], [-1, -1]], np.int32),
    )
  )
  np.testing.assert_array_equal(where, [[True, False], [True, True]])
