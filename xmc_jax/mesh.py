"""The device mesh ('data', 'label') and what lies where on it."""

import re

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from xmc_jax.contract import Array, Batch, PyTree


def make(data: int = 1, label: int = 1) -> Mesh:
  """A mesh of the first `data * label` devices, axes ('data', 'label'), both Auto."""
  devices = jax.devices()[: data * label]
  return jax.make_mesh((data, label), ("data", "label"), axis_types=(AxisType.Auto,) * 2, devices=devices)


def replicated(mesh: Mesh) -> NamedSharding:
  return NamedSharding(mesh, PartitionSpec())


def path_name(path: tuple) -> str:
  """A tree path as 'encoder/layer_0/bias': dict keys, field names and positions."""
  return "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)


def shard_tree(tree: PyTree, rules: tuple[tuple[str, tuple], ...], mesh: Mesh) -> PyTree:
  """A tree of shardings by path rules.

  Args:
    tree: arrays, or anything with their structure.
    rules: (regex, axes) pairs; the first whose regex is found in a leaf's path
      wins; axes name a mesh axis or None for each leading dimension.
    mesh: the mesh.

  Raises:
    ValueError: a path that no rule matches, so that nothing is sharded by accident.
  """

  def sharding(path, leaf):
    name = path_name(path)
    for pattern, axes in rules:
      if re.search(pattern, name):
        return NamedSharding(mesh, PartitionSpec(*axes) if np.ndim(leaf) else PartitionSpec())
    raise ValueError(f"no sharding rule matches {name!r}; rules: {[pattern for pattern, _ in rules]}")

  return jax.tree_util.tree_map_with_path(sharding, tree)


def put_batch(batch: Batch, mesh: Mesh) -> Batch:
  """Moves a host batch to the devices: what has a row per query is split over 'data', the rest copied."""
  rows = NamedSharding(mesh, PartitionSpec("data"))
  everywhere = replicated(mesh)

  def put(tree: PyTree, sharding: NamedSharding) -> PyTree:
    return jax.tree.map(lambda leaf: jax.device_put(leaf, sharding), tree)

  return Batch(
    rows=put(batch.rows, rows),
    queries=put(batch.queries, rows),
    columns=put(batch.columns, everywhere),
    labels=put(batch.labels, everywhere),
    positives=put(batch.positives, rows),
    weights=put(batch.weights, rows),
    excluded=put(batch.excluded, rows),
  )


def fetch(array: Array) -> np.ndarray:
  """A device array as numpy, said aloud so that a transfer guard lets it pass."""
  return np.asarray(jax.device_get(array))
