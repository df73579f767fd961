"""Fits gradient-boosted trees by LightGBM, and predicts by arrays of their nodes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from xmc_jax.errors import UserError

MOST_LEAVES = 8  # of a tree: a byte has a bit for each
_FEW = 100_000  # with fewer rows, one thread fits in less than a second
_FIRST_BIT = np.array([(bits & -bits).bit_length() - 1 for bits in range(256)])


class Trees:
  """Predicts the sum of trees (QuickScorer; Lucchese et al., SIGIR 2015).

  The leaves of a tree are numbered from left to right. A node whose threshold is below a row's value rules
  out the leaves on its left; the row's leaf is the first that no node rules out.

  Args:
    nodes: `[n, 4]`, of each node of any tree: feature, threshold, tree, and a bit for each leaf that is not
      on its left.
    values: `[T, 8]` of the leaves.
  """

  def __init__(self, nodes: Sequence[Sequence[float]], values: Sequence[Sequence[float]]):
    self.nodes, self.values = nodes, values
    feature, threshold, tree, possible = np.array(nodes, np.float64).reshape(-1, 4).T
    self._values = np.array(values, np.float64)[:, _FIRST_BIT]  # [T, 256], by the leaves that are possible
    self._tables = []  # of each feature the thresholds, and the leaves that are possible between
    for compared in np.unique(feature).astype(int).tolist():
      mine = feature == compared
      thresholds, places = np.unique(threshold[mine], return_inverse=True)
      table = np.full((len(values), len(thresholds) + 1), 255, np.uint8)
      np.bitwise_and.at(table, (tree[mine].astype(int), places + 1), possible[mine].astype(np.uint8))
      self._tables.append((compared, thresholds, np.bitwise_and.accumulate(table, axis=1)))

  def predict(self, features: np.ndarray) -> np.ndarray:
    """Returns the sums `[n]` float64 for features `[n, F]`."""
    possible = np.full((len(self._values), len(features)), 255, np.uint8)
    for compared, thresholds, table in self._tables:
      possible &= table[:, np.searchsorted(thresholds, features[:, compared])]
    total = np.zeros(len(features))
    for values, leaves in zip(self._values, possible):  # one after the other, as LightGBM adds them
      total += values[leaves]
    return total


def fitted(features: np.ndarray, right: np.ndarray, settings: dict, num_trees: int) -> Trees:
  """Fits trees to predict `right` `[n]` from features `[n, F]` float32.

  The same input gives the same trees for any number of cores.

  Raises:
    UserError: LightGBM is not installed.
  """
  lightgbm = library()
  data = lightgbm.Dataset(features, right.astype(np.float32), params={"verbose": -1})
  # Threads synchronise about a hundred times per tree: on a busy machine this takes seconds for little work.
  settings = {"num_threads": int(len(features) < _FEW), "num_leaves": MOST_LEAVES, **settings}
  model = lightgbm.train(settings, data, num_trees).dump_model()
  return _from_nested([tree["tree_structure"] for tree in model["tree_info"]])


def _from_nested(roots: list[dict[str, Any]]) -> Trees:
  nodes: list[tuple[int, float, int, int]] = []
  values = np.zeros((len(roots), MOST_LEAVES))

  def add(node: dict[str, Any], tree: int, first_leaf: int) -> int:
    """Adds a node and those below it; returns the number of the leaf after them."""
    if "leaf_value" in node:
      values[tree, first_leaf] = node["leaf_value"]
      return first_leaf + 1
    middle = add(node["left_child"], tree, first_leaf)
    on_the_left = (1 << middle) - (1 << first_leaf)
    nodes.append((node["split_feature"], node["threshold"], tree, 255 - on_the_left))
    return add(node["right_child"], tree, middle)

  for tree, root in enumerate(roots):
    add(root, tree, first_leaf=0)
  return Trees(nodes, values.tolist())


def library() -> Any:
  """Imports LightGBM; raises UserError if it is not installed, or does not load."""
  try:
    import lightgbm
  except (ImportError, OSError) as error:  # its shared library needs libgomp
    raise UserError(
      "the hybrid ranker needs LightGBM: pip install lightgbm, or rank without it by --scores=encoder, in "
      f"training --config.eval.scores=fused ({error!s:.100})"
    ) from None
  return lightgbm
