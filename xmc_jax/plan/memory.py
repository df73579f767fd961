"""Adds up the bytes on one device while a step runs and while labels are ranked."""

import functools
import math

import jax
import ml_collections
from jax.extend import core

from xmc_jax.config import SOURCES
from xmc_jax.plan.account import Account, Accountant
from xmc_jax.plan.chips import Rates
from xmc_jax.plan.sizes import Sizes
from xmc_jax.plan.step import Step, make
from xmc_jax.retrieval.search import BLOCK_OF_ACCELERATORS
from xmc_jax.types import PyTree

_BYTES_PER_NUMBER = 4
_SEARCH_CHUNK = 8192  # of ops.top_k
_ANY_RATES = Rates(1.0, 1.0)


@functools.lru_cache(maxsize=4)  # the chunks that fit are asked for again
def trace(config: ml_collections.FrozenConfigDict, sizes: Sizes) -> tuple[Step, core.ClosedJaxpr]:
  """Returns a step and its program."""
  step = make(config, sizes)
  return step, step.trace()


def traced(
  config: ml_collections.ConfigDict, sizes: Sizes, rates: Rates = _ANY_RATES
) -> tuple[Step, Account]:
  """Returns a step of a plan's config and sizes, and what a device of these rates takes for it."""
  step, program = trace(ml_collections.FrozenConfigDict(config), sizes)
  arguments = jax.tree.leaves(step.arguments)
  mesh = {"data": config.mesh.data, "label": config.mesh.label}
  return step, Accountant(mesh, rates).program(program, [leaf.sharding for leaf in arguments])


def moments(
  config: ml_collections.ConfigDict, sizes: Sizes, step: Step, account: Account
) -> dict[str, dict[str, float]]:
  """Returns the bytes on one device, by moment ('training', 'evaluation') and by part."""
  return {"training": of_step(step, account), "evaluation": of_evaluation(config, sizes, step)}


def of_step(step: Step, account: Account) -> dict[str, float]:
  """Returns the bytes, by part, that a step takes on one device."""
  return {**_state(step), "batch": bytes_of(step.batch), "arrays of the step": account.peak}


def peak(config: ml_collections.ConfigDict, sizes: Sizes) -> float:
  """Returns the most bytes that a step takes on one device."""
  return sum(of_step(*traced(config, sizes)).values())


def of_evaluation(config: ml_collections.ConfigDict, sizes: Sizes, step: Step) -> dict[str, float]:
  """Returns the bytes, by part, while queries are ranked against labels and, if used, training points."""
  labels, points = vectors(config, sizes, step)
  block = math.ceil(BLOCK_OF_ACCELERATORS / config.mesh.data) * min(_SEARCH_CHUNK, sizes.num_labels)
  return {
    **_state(step),
    "label vectors": labels / config.mesh.label,
    "vectors of training points": points / config.mesh.label,
    "scores": 2 * _BYTES_PER_NUMBER * block,
  }


def vectors(config: ml_collections.ConfigDict, sizes: Sizes, step: Step) -> tuple[float, float]:
  """Returns the bytes of all vectors that an evaluation ranks by: of labels, and of training points."""
  kinds, scores = max(1, len(step.method.scorers)), config.eval.scores
  sources, has_keys = opens_sources(config), step.method.key_temperature > 0
  by_paper = not sources or (scores == "hybrid" and (kinds > 1 or has_keys))
  row = _BYTES_PER_NUMBER * step.width
  return (
    sizes.num_labels * row * (sources * kinds + by_paper * (kinds if config.eval.fusion_rows else 1)),
    sizes.num_points * row * (sources + by_paper * has_keys),
  )


def opens_sources(config: ml_collections.ConfigDict) -> bool:
  """Returns whether an evaluation also ranks by training points and words."""
  return config.eval.scores in ("hybrid", *SOURCES)


def _state(step: Step) -> dict[str, float]:
  return {
    "parameters": bytes_of(step.params),
    "optimiser state": 2 * bytes_of(step.trained),
    "extra state": bytes_of(step.extra_state),
  }


def bytes_of(tree: PyTree) -> float:
  """Returns the bytes on one device of shapes with their shardings."""

  def size(leaf):
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize

  return sum(map(size, jax.tree.leaves(tree)))
