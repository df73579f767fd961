"""Describes a training step by shapes alone, as they lie on a mesh whose devices need not be here."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jax.extend import core
from jax.sharding import AbstractMesh, AxisType

from xmc_jax import config as configs
from xmc_jax import methods
from xmc_jax.batching.builder import epoch_shape
from xmc_jax.distributed import platform, sharding
from xmc_jax.distributed.sharding import rounded_up
from xmc_jax.models.encoder import equal_blocks_traced_once
from xmc_jax.ops import lazy_adam
from xmc_jax.plan.sizes import Sizes
from xmc_jax.types import Batch, BatchSpec, DatasetInfo, Method, PyTree, SampledAnchors, Tokens

Groups = list[tuple[int, int]]  # (width in tokens, number of texts)
# A GPU's programs are the same, but for cuDNN's attention.
_as_on_an_accelerator = platform.traced_for("tpu")
_SPECIAL_IDS = (0, 1, 2)
_TILE = 8  # widths of texts and of positives are multiples of it
_WIDEST = 3  # a batch has room for so many times the average positives of a point


class Step(NamedTuple):
  """Holds a step's method, and the shapes of what it takes.

  Attributes:
    method: the method.
    params, extra_state, batch: shapes with their shardings.
    width: of the embeddings of points.
    rows, columns: points and labels of a batch.
    steps_per_epoch: 0 if the number of points is unknown.
    mesh: axes 'data' and 'label'.
  """

  method: Method
  params: PyTree
  extra_state: PyTree
  batch: Batch
  width: int
  rows: int
  columns: int
  steps_per_epoch: int
  mesh: AbstractMesh

  @property
  def trained(self) -> PyTree:
    """Returns the parameters that have moments: not those of a frozen encoder."""
    tables = {name: self.params[name] for name in self.method.sparse_params}
    return tables if self.method.batch.frozen else self.params

  @property
  def arguments(self) -> tuple[PyTree, ...]:
    """Returns what a step takes."""
    return self.params, self.extra_state, self.batch, self.batch.rows

  @_as_on_an_accelerator
  def trace(self) -> core.ClosedJaxpr:
    """Traces the loss and its gradients."""
    method = self.method
    devices: Any = self.mesh if self.mesh.size > 1 else None

    def gradients(params, extra_state, batch, seeds):
      dense = {name: leaf for name, leaf in params.items() if name not in method.sparse_params}
      ids = {name: rows_of(batch, extra_state) for name, rows_of in method.sparse_params.items()}
      taken = {name: lazy_adam.take(params[name], rows, mesh=devices) for name, rows in ids.items()}

      def loss(dense, taken):
        value, _, updates = method.loss({**dense, **taken}, extra_state, batch, jax.random.key(seeds[0]))
        return value, updates

      return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(dense, taken)

    with equal_blocks_traced_once():
      return jax.make_jaxpr(gradients)(*self.arguments)


@_as_on_an_accelerator
def make(config: ml_collections.ConfigDict, sizes: Sizes) -> Step:
  """Describes the step of a config with chunk sizes, on the mesh that it names."""
  config = configs.changed(config, {"encoder.pretrained": False})
  mesh = AbstractMesh(
    (config.mesh.data, config.mesh.label), ("data", "label"), axis_types=(AxisType.Auto,) * 2
  )
  method = methods.make(config, info(config, sizes, mesh))
  spec, most = method.batch, config.train.batch_size
  steps, rows = 0, most
  if sizes.num_points:
    steps, rows = epoch_shape(sizes.num_points, most, config.mesh.data, spec.batch_is_cluster)
  columns = pool_size(spec, sizes, rows)
  points = _groups(config, "query_chunk", rows, config.mesh.data, sizes.tokens_per_point)
  labels = _groups(config, "label_chunk", columns, mesh.size, sizes.tokens_per_label)
  num_positives = min(max(spec.num_positives, math.ceil(_WIDEST * sizes.labels_per_point)), sizes.num_labels)
  num_positives = rounded_up(num_positives, _TILE)
  every_label = (config.data.max_length, rounded_up(sizes.num_labels, mesh.size))
  params, extra_state = _state(method, mesh)
  (one,) = _texts([(_TILE, 1)])
  with equal_blocks_traced_once():
    width = jax.eval_shape(method.embed_queries, params, extra_state, one).shape[1]
  shapes = batch(spec, mesh, points, labels, every_label, num_positives=num_positives, width=width)
  return Step(method, params, extra_state, shapes, width, rows, columns, steps, mesh)


def info(config: ml_collections.ConfigDict, sizes: Sizes, mesh: Any) -> DatasetInfo:
  """Returns what a method is told about data of these sizes."""
  return DatasetInfo(
    num_points=sizes.num_points or 10 * config.train.batch_size,
    num_labels=sizes.num_labels,
    max_length=config.data.max_length,
    vocab_size=sizes.encoder.vocab_size,
    special_ids=_SPECIAL_IDS,
    mesh=mesh,
    label_counts=np.broadcast_to(np.int32(1), sizes.num_labels),  # takes no memory
    graphs=dict(sizes.graphs),
  )


def pool_size(spec: BatchSpec, sizes: Sizes, rows: int) -> int:
  """Returns S, the labels of a batch, without those that a method adds on the device."""
  if spec.labels in ("all", "table"):
    return sizes.num_labels
  most = min(spec.pool_size or sizes.num_labels, sizes.num_labels)
  if spec.fill_pool and not spec.num_hard_negatives:
    return most
  sampled = rows * ((spec.num_positives or sizes.labels_per_point) + spec.num_hard_negatives)
  return min(math.ceil(sampled) + spec.num_random_negatives, most)


def _groups(config: ml_collections.ConfigDict, chunk: str, rows: int, shards: int, tokens: float) -> Groups:
  """Returns the groups of texts: of average width, and, if they are in chunks, two chunks of the longest."""
  rows, longest = rounded_up(rows, shards), config.data.max_length
  width = min(longest, rounded_up(math.ceil(tokens), _TILE))
  in_chunks = 2 * config.method.get(chunk, 0) * shards
  if width == longest or not 0 < in_chunks < rows:
    return [(longest if 0 < in_chunks / 2 < rows else width, rows)]
  return [(width, rows - in_chunks), (longest, in_chunks)]


def _state(method: Method, mesh: Any) -> tuple[PyTree, PyTree]:
  """Returns the shapes of parameters and extra state, laid out by the method's rules."""
  params, extra_state = jax.eval_shape(lambda: method.init(jax.random.key(0)))
  state = {"params": params, "extra_state": extra_state}
  state = _laid_out(state, method.sharding_rules, mesh)
  return state["params"], state["extra_state"]


def batch(
  spec: BatchSpec,
  mesh: Any,
  points: Groups,
  labels: Groups,
  every_label: tuple[int, int],
  *,
  num_positives: int,
  width: int,
) -> Batch:
  """Returns the shapes of a batch.

  Args:
    spec: what the method wants.
    mesh: the devices, axes ('data', 'label').
    points, labels: groups of texts of the batch and of its pool.
    every_label: the group of all labels, for a method that chooses negatives on the device.
    num_positives: P.
    width: of the vectors of points, for a method with a frozen encoder.
  """
  rows, columns = (sum(number for _, number in groups) for groups in (points, labels))
  positives, weights = _array(rows, num_positives), _array(rows, num_positives, dtype=jnp.float32)
  of_anchors = [(width, rounded_up(number, mesh.size)) for width, number in points]
  anchors = SampledAnchors(
    rows=_array(rows),
    columns=_array(sum(number for _, number in of_anchors)),
    anchors=_texts(of_anchors),
    positives=positives,
    weights=weights,
  )
  shapes = Batch(
    rows=_array(rows),
    queries=() if spec.frozen else _texts(points),
    columns=_array(columns),
    labels=() if "table" in spec.labels else _texts(labels),
    positives=positives,
    weights=weights,
    excluded=_array(rows, 1),
    every_label=_texts([every_label])[0] if spec.num_fresh_negatives else (),
    vectors=_array(rows, width, dtype=jnp.float32) if spec.frozen else (),
    dropped=_array(2) if spec.pool_size else (),
    sampled_anchors=dict.fromkeys(spec.graph_sides, anchors),
    shared=_array(rows, rows, dtype=bool) if spec.shared else (),
  )
  return _laid_out(shapes, sharding.BATCH_RULES, mesh)


def _array(*shape: int, dtype: Any = jnp.int32) -> Any:
  return jax.ShapeDtypeStruct(shape, dtype)


def _texts(groups: Groups) -> tuple[Tokens, ...]:
  return tuple(Tokens(_array(number, width), _array(number)) for width, number in groups)


def _laid_out(tree: PyTree, rules: tuple[tuple[str, tuple], ...], mesh: Any) -> PyTree:
  """Returns shapes with shardings by path rules."""
  return jax.tree.map(lambda leaf, at: leaf.update(sharding=at), tree, sharding.shard_tree(tree, rules, mesh))
