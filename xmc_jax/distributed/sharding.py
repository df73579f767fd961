"""Makes the device mesh ('data', 'label') and places arrays on it."""

import math
import re
from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from xmc_jax.distributed.split_table import SplitTable
from xmc_jax.errors import UserError
from xmc_jax.types import Array, Batch, PyTree

# The axes over which rows of label texts and label embeddings are split, the first axis outermost.
LABEL_ROWS = ("label", "data")
# How a batch is split: texts of labels and anchors over both axes, arrays with a row per query over 'data'.
BATCH_RULES = (
  ("(^|/)(labels|every_label|anchors)/", (LABEL_ROWS,)),
  ("(^|/)(columns|dropped)$", ()),
  ("", ("data",)),
)


def make(data: int = 1, label: int = 1) -> Mesh:
  """Makes a mesh of the first `data * label` devices, axes ('data', 'label'), both Auto."""
  devices = jax.devices()[: data * label]
  return jax.make_mesh((data, label), ("data", "label"), axis_types=(AxisType.Auto,) * 2, devices=devices)


def replicated(mesh: Mesh | AbstractMesh) -> NamedSharding:
  return NamedSharding(mesh, PartitionSpec())


def path_name(path: tuple) -> str:
  """Writes a tree path as 'encoder/layer_0/bias': dict keys, field names and positions."""
  return "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)


def shard_tree(tree: PyTree, rules: tuple[tuple[str, tuple], ...], mesh: Mesh) -> PyTree:
  """Returns a tree of shardings by path rules.

  Args:
    tree: arrays, or anything with their structure.
    rules: (regex, axes) pairs; the first whose regex is found in a leaf's path
      wins; axes name a mesh axis or None for each leading dimension.
    mesh: the mesh.

  Raises:
    ValueError: no rule matches an array's path; so no array is split, or copied to every device, by
      accident. Scalars need no rule.
  """

  def sharding(path, leaf):
    return NamedSharding(mesh, PartitionSpec(*_axes(path_name(path), rules) if np.ndim(leaf) else ()))

  return jax.tree_util.tree_map_with_path(sharding, tree)


def _axes(name: str, rules: tuple[tuple[str, tuple], ...]) -> tuple:
  for pattern, axes in rules:
    if re.search(pattern, name):
      return axes
  raise ValueError(f"no sharding rule matches {name!r}; rules: {[pattern for pattern, _ in rules]}")


def by_path(tree: PyTree) -> dict[str, Any]:
  """Returns the leaves of a tree by their `path_name`."""
  return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def splits_rows(tree: PyTree, rules: tuple[tuple[str, tuple], ...]) -> bool:
  """Returns whether rules split the rows of any array of a tree."""
  return any(np.ndim(leaf) and any(_axes(name, rules)) for name, leaf in by_path(tree).items())


def rows_of_labels(
  tree: PyTree,
  like: PyTree,
  rules: tuple[tuple[str, tuple], ...],
  keys: tuple[Sequence[str], Sequence[str]],
  most: int,
) -> PyTree:
  """Moves the rows of split arrays to where `like` has their labels; for other labels it has its own rows.

  `keys` are those of the labels of `tree`, and of `like`. Arrays that have a row for each label are padded by
  less than `most` rows.
  """
  at = dict(reversed([(key, row) for row, key in enumerate(keys[0])]))  # the first of several
  ids = np.array([at.get(key, -1) for key in keys[1]])
  known, own = np.flatnonzero(ids >= 0), by_path(like)

  def move(path, leaf):
    name = path_name(path)
    padding = len(leaf) - len(keys[0]) if name in own and np.ndim(leaf) and any(_axes(name, rules)) else -1
    if not 0 <= padding < most or np.shape(own[name])[0] - len(keys[1]) not in range(most):
      return leaf
    moved = np.array(own[name])
    if moved.shape[1:] != leaf.shape[1:]:
      return leaf
    moved[known] = np.asarray(leaf)[ids[known]]
    return moved

  return jax.tree_util.tree_map_with_path(move, tree)


def fit_rows(tree: PyTree, like: PyTree, rules: tuple[tuple[str, tuple], ...], most: int) -> PyTree:
  """Cuts or pads arrays whose rows are split to the rows that `like` has; by less than `most` rows.

  Another mesh pads them to another number of rows.

  Raises:
    UserError: the trees differ in anything else; the message names it.
  """
  shapes = {name: np.shape(leaf) for name, leaf in by_path(like).items()}
  if missing := sorted(shapes.keys() ^ by_path(tree).keys()):
    where = "there" if missing[0] in shapes else "here"
    raise UserError(f"{missing[0]} is missing {where}: that run's method has other parameters")

  def fit(path, leaf):
    name = path_name(path)
    wanted, given = shapes[name], np.shape(leaf)
    if given == wanted:
      return leaf
    padded = any(_axes(name, rules)) and given[1:] == wanted[1:] and abs(given[0] - wanted[0]) < most
    if not padded:
      raise UserError(f"{name} is {given} there and {wanted} here; take encoder and tables from that run")
    return np.pad(leaf[: wanted[0]], [(0, max(0, wanted[0] - given[0]))] + [(0, 0)] * (len(wanted) - 1))

  return jax.tree_util.tree_map_with_path(fit, tree)


def place(array: Array, sharding: jax.sharding.Sharding) -> jax.Array:
  """Puts a host array on the devices; with several processes each puts the parts of its own devices."""
  if sharding.is_fully_addressable:
    return jax.device_put(array, sharding)
  return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def split_rows(array: Array | SplitTable, mesh: Mesh, *axes: str) -> jax.Array:
  """Splits the rows of a host array over mesh axes; appends zero rows until they divide.

  Collective for a split table.
  """
  shards = math.prod(mesh.shape[axis] for axis in axes)
  return place_rows(array, NamedSharding(mesh, PartitionSpec(axes)), rounded_up(len(array), shards))


def place_rows(array: Array | SplitTable, sharding: jax.sharding.Sharding, num_rows: int) -> jax.Array:
  """Puts a host array on the devices, with zero rows appended until there are `num_rows`.

  Collective for a split table.
  """
  if isinstance(array, SplitTable):
    return array.placed(sharding, num_rows)
  if missing := num_rows - len(array):
    array = np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1))
  return place(array, sharding)


def split_tree(tree: PyTree, mesh: Mesh, *axes: str) -> PyTree:
  """Applies `split_rows` to every leaf."""
  return jax.tree.map(lambda leaf: split_rows(leaf, mesh, *axes), tree)


def rounded_up(number: int, multiple: int) -> int:
  """Rounds a number up to a multiple of `multiple`."""
  return -(-number // multiple) * multiple


def local_rows(num_rows: int, mesh: Mesh, *axes: str) -> np.ndarray:
  """Returns `[num_rows]` bool: which rows of an array split over mesh axes this process's devices hold."""
  sharding = NamedSharding(mesh, PartitionSpec(axes))
  local = np.zeros(num_rows, bool)
  for index in sharding.addressable_devices_indices_map((num_rows,)).values():
    if index is not None:
      local[index] = True
  return local


def put_batch(batch: Batch, mesh: Mesh) -> Batch:
  """Moves a host batch to the devices, by `BATCH_RULES`."""
  layout = shard_tree(batch, BATCH_RULES, mesh)
  if jax.process_count() == 1:
    return jax.device_put(batch, layout)  # all arrays in one call, which takes less time
  return jax.tree.map(place, batch, layout)


def to_host(array: Array) -> np.ndarray:
  """Copies a whole device array to numpy, on every process; explicitly, for a transfer guard to allow it."""
  if isinstance(array, jax.Array) and not (array.is_fully_addressable or array.is_fully_replicated):
    mesh = cast(NamedSharding, array.sharding).mesh
    array = jax.jit(lambda x: x, out_shardings=replicated(mesh))(array)
  return np.asarray(jax.device_get(array))
