"""Makes a method's training step from shapes alone, to compile it for devices that are not here."""

from typing import NamedTuple

import jax
import ml_collections

from xmc_jax import methods
from xmc_jax import plan as plans
from xmc_jax.distributed import sharding
from xmc_jax.plan import step as shapes
from xmc_jax.plan.step import Groups
from xmc_jax.training import optimizer
from xmc_jax.training.step import TrainStep
from xmc_jax.types import Batch, Method, TrainState

_FROZEN_WIDTH = 64  # of the vectors of points under a frozen encoder
_TOTAL_STEPS = 1000


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
  length, rows, sizes = config.data.max_length, config.train.batch_size, plans.sizes_of(config)
  method = methods.make(config, shapes.info(config, sizes, devices)._replace(vocab_size=vocab_size))
  batch = shapes.batch(
    method.batch,
    devices,
    points or [(length, rows)],
    labels or [(length, shapes.pool_size(method.batch, sizes, rows))],
    (length, sizes.num_labels),
    num_positives=num_positives,
    width=_FROZEN_WIDTH,
  )
  step = TrainStep(method, devices, config.train, optimizer.make(config, _TOTAL_STEPS), None)
  state = jax.eval_shape(lambda: step.first_state(*method.init(jax.random.key(0))))
  layout = sharding.shard_tree(state, method.sharding_rules, devices)
  state = jax.tree.map(lambda leaf, at: leaf.update(sharding=at), state, layout)
  return AbstractStep(method, step, state, batch)
