"""Estimates what a run takes: memory of each device by part, FLOPs of a step, and time on a named chip.

Plain arithmetic on a config and a few sizes: no data, no weights, no device. docs/planning.md tells how the
constants were fitted, and how large their errors are.
"""

from typing import NamedTuple

import ml_collections

from xmc_jax import models
from xmc_jax.errors import ConfigError
from xmc_jax.plan import chunks, device_memory, shapes, texts, work
from xmc_jax.plan.chips import CHIPS, USABLE, Chip
from xmc_jax.plan.remedies import remedy
from xmc_jax.plan.sizes import Sizes, sizes_of
from xmc_jax.plan.work import Stage

__all__ = ["CHIPS", "USABLE", "Chip", "Plan", "Sizes", "Stage", "check", "plan", "sizes_of"]

# The config key to change if this part is the largest.
_KEYS = {
  "label embeddings": "mesh.label",
  "their gradients": "mesh.label",
  "label texts": "mesh.label",
  "label ids": "plan.num_labels",
  "label cache": "mesh.label",
  "queries and positives": "train.batch_size",
  "chunk scores": "method.score_chunk",
}


class Plan(NamedTuple):
  """Holds the memory, the work and the time that a run would take.

  Attributes:
    config: the run's config, with open chunk sizes chosen for the chip.
    sizes, chip: what the plan is for.
    moments: bytes on one device, by moment ('scoring', 'encoding', 'evaluation') and by part.
    stages: the work of a step on one device, by stage.
  """

  config: ml_collections.ConfigDict
  sizes: Sizes
  chip: Chip
  moments: dict[str, dict[str, float]]
  stages: dict[str, Stage]

  @property
  def moment(self) -> str:
    """Returns the moment that takes the most memory."""
    return max(self.moments, key=lambda moment: sum(self.moments[moment].values()))

  @property
  def parts(self) -> dict[str, float]:
    """Returns the bytes by part at that moment; they add up to `total`."""
    return self.moments[self.moment]

  @property
  def total(self) -> float:
    """Returns the bytes on one device at that moment."""
    return sum(self.parts.values())

  @property
  def limit(self) -> float:
    """Returns the bytes of a device that a plan may use."""
    return USABLE * self.chip.memory

  @property
  def seconds(self) -> float:
    """Returns the seconds of a step."""
    return sum(stage.seconds for stage in self.stages.values())

  @property
  def steps_per_epoch(self) -> int:
    """Returns the steps of an epoch; 0 if the number of points is unknown."""
    return shapes.epoch(self.config, self.sizes)[0]


def plan(config: ml_collections.ConfigDict, sizes: Sizes, chip: Chip | None = None) -> Plan:
  """Returns the plan of a config, whether it fits or not.

  Args:
    config: a complete config, as for training.
    sizes: of data and encoder; `sizes_of(config)` returns those that the config names.
    chip: None is the one that `config.plan.chip` names.
  """
  chip = chip or CHIPS[config.plan.chip]
  head = models.head_settings(config.encoder, models.modules_of(config.encoder))
  config = chunks.changed(config, {f"encoder.{key}": value for key, value in head.items()})
  chosen = chunks.choose(config, sizes, chip.memory_of_jax, chip.kind)
  config = chunks.changed(config, {f"method.{key}": value for key, value in chosen.items()})
  return Plan(
    config, sizes, chip, device_memory.moments(config, sizes, chip.kind), work.stages(config, sizes, chip)
  )


def check(made: Plan) -> None:
  """Raises ConfigError if a plan does not fit; the message names settings that do."""
  if made.total <= made.limit:
    return
  config, part = made.config, max(made.parts, key=made.parts.__getitem__)
  section, name = _key(made, part).split(".")
  remedies = remedy(config, lambda other: device_memory.peak(other, made.sizes, made.chip.kind), made.limit)
  raise ConfigError(
    f"{section}.{name} = {config[section][name]!r} does not fit: {made.total / 1e9:,.1f} GB on each device "
    f"in {made.moment}, of it {made.parts[part] / 1e9:,.1f} GB {part}, and {made.limit / 1e9:,.1f} GB are "
    f"usable of the {made.chip.memory / 1e9:,.0f} GB of {config.plan.chip}; {remedies}"
  )


def _key_of_weights(made: Plan) -> str:
  config, sizes = made.config, made.sizes
  if config.method.labels == "table":
    return "mesh.label"
  of_table = shapes.row_sparse(config, sizes) if shapes.classifier_dim(config, sizes) else 0
  return "method.classifier_dim" if of_table > shapes.parameters(config, sizes) else "encoder.name"


def _key(made: Plan, part: str) -> str:
  """Returns the config key that determines the size of the largest part."""
  all_at_once = shapes.picks_some(made.config, made.sizes) or "score_chunk" not in made.config.method
  if part == "chunk scores" and all_at_once:
    return "method.pool_size" if shapes.setting(made.config, "pool_size") else "train.batch_size"
  if part == "points in memory":  # RAE-XMC's own ranking has them, too
    return "mesh.label" if shapes.remembers_points(made.sizes) else "eval.scores"
  if part != "activations":
    return _KEYS.get(part) or _key_of_weights(made)
  of_key = {
    "method.query_chunk": texts.query_texts(made.config, made.sizes),
    "method.label_chunk": texts.label_texts(made.config, made.sizes),
  }
  return max(of_key, key=lambda key: sum(of_key[key].activations(made.config, made.sizes, made.chip.kind)))
