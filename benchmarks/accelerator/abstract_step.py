"""Makes a method's training step from shapes alone, to compile it for devices that are not here."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from xmc_jax import methods
from xmc_jax import plan as plans
from xmc_jax.distributed import sharding
from xmc_jax.plan import shapes
from xmc_jax.training import optimizer
from xmc_jax.training.step import TrainStep
from xmc_jax.types import Batch, BatchSpec, DatasetInfo, Method, SampledAnchors, Tokens, TrainState

_SPECIAL_IDS = (101, 102, 0)
_FROZEN_WIDTH = 64  # of the vectors of points under a frozen encoder
_TOTAL_STEPS = 1000

Groups = list[tuple[int, int]]  # (width in tokens, number of texts)


class AbstractStep(NamedTuple):
  """Holds a training step and the shapes of what it takes.

  Attributes:
    method: the method.
    step: the step; its devices may be those of a topology.
    state, batch: shapes with their shardings.
  """

  method: Method
  step: TrainStep
  state: TrainState
  batch: Batch

  def lower(self) -> jax.stages.Lowered:
    """Traces the step as a training runs it."""
    return self.step.lower(self.state, self.batch)


class _Shapes:
  """Makes shapes that lie on a mesh."""

  def __init__(self, devices: jax.sharding.Mesh):
    self._devices = devices

  def array(self, shape: tuple[int, ...], dtype, *axes) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(self._devices, P(*axes)))

  def texts(self, groups: Groups, *axes) -> tuple[Tokens, ...]:
    ids = lambda *shape: self.array(shape, jnp.int32, *axes)
    return tuple(Tokens(ids(number, width), ids(number)) for width, number in groups)


def make(
  config: ml_collections.ConfigDict,
  devices: jax.sharding.Mesh,
  *,
  vocab_size: int,
  num_positives: int,
  points: Groups | None = None,
  labels: Groups | None = None,
) -> AbstractStep:
  """Returns the step of a config whose `plan.*` say how many labels, points and graphs there are.

  Args:
    config: the run's config; its chunk sizes are given.
    devices: of a mesh 'data' x 'label', here or of a topology.
    vocab_size: tokens of the encoder.
    num_positives: width of the batch's positives.
    points, labels: groups of texts of a batch and of its pool; None is one group of the longest texts.
  """
  length, num_labels = config.data.max_length, config.plan.num_labels
  num_points = config.plan.num_points or 10 * config.train.batch_size
  graphs = {f"graph{number}": ("query", "label") for number in range(config.plan.num_graphs)}
  counts = np.ones(num_labels, np.int64)
  info = DatasetInfo(
    num_points, num_labels, length, vocab_size, _SPECIAL_IDS, devices, graphs=graphs, label_counts=counts
  )
  method = methods.make(config, info)
  columns = shapes.pool_size(config, plans.sizes_of(config)) - method.batch.num_fresh_negatives
  points = points or [(length, config.train.batch_size)]
  batch = _batch(method.batch, _Shapes(devices), points, labels or [(length, columns)], num_positives)
  if method.batch.num_fresh_negatives:
    batch = batch._replace(
      every_label=_Shapes(devices).texts([(length, num_labels)], sharding.LABEL_ROWS)[0],
      positive_ids=batch.positives,
      excluded_ids=batch.excluded,
      positives=(),
      excluded=(),
    )
  step = TrainStep(method, devices, config.train, optimizer.make(config, _TOTAL_STEPS), None)
  state = _state(method, step, devices)
  return AbstractStep(method, step, state, batch)


def _state(method: Method, step: TrainStep, devices: jax.sharding.Mesh) -> TrainState:
  """Returns the shapes of the first state, laid out by the method's rules."""
  state = jax.eval_shape(lambda: step.first_state(*method.init(jax.random.key(0))))
  layout = sharding.shard_tree(state, method.sharding_rules, devices)
  return jax.tree.map(lambda leaf, at: leaf.update(sharding=at), state, layout)


def _batch(spec: BatchSpec, on: _Shapes, points: Groups, labels: Groups, num_positives: int) -> Batch:
  """Returns the shapes of a batch."""
  num_rows, columns = (sum(number for _, number in groups) for groups in (points, labels))
  ints, rows = jnp.int32, (num_rows, num_positives)
  positives, weights = on.array(rows, ints, "data"), on.array(rows, jnp.float32, "data")
  anchors = SampledAnchors(
    rows=on.array((num_rows,), ints, "data"),
    columns=on.array((num_rows,), ints),
    anchors=on.texts(points, sharding.LABEL_ROWS),
    positives=positives,
    weights=weights,
  )
  return Batch(
    rows=on.array((num_rows,), ints, "data"),
    queries=() if spec.frozen else on.texts(points, "data"),
    columns=on.array((columns,), ints),
    labels=() if "table" in spec.labels else on.texts(labels, sharding.LABEL_ROWS),
    positives=positives,
    weights=weights,
    excluded=on.array((num_rows, 1), ints, "data"),
    vectors=on.array((num_rows, _FROZEN_WIDTH), jnp.float32, "data") if spec.frozen else (),
    dropped=on.array((2,), ints) if spec.pool_size else (),
    sampled_anchors=dict.fromkeys(spec.graph_sides, anchors),
    shared=on.array((num_rows, num_rows), bool, "data") if spec.shared else (),
  )
