"""Estimates what a run takes: memory of each device, FLOPs of a step, and time on a named chip.

JAX traces a step from shapes: no data, no weights, no device. docs/planning.md tells how large errors are.
"""

from typing import NamedTuple

import ml_collections

from xmc_jax import config as configs
from xmc_jax import models
from xmc_jax.errors import ConfigError
from xmc_jax.plan import chunks, memory
from xmc_jax.plan.account import Account
from xmc_jax.plan.chips import CHIPS, OF_BANDWIDTH, OF_PEAK, USABLE, Chip, Rates
from xmc_jax.plan.remedies import remedy
from xmc_jax.plan.sizes import Sizes, sizes_of
from xmc_jax.plan.step import Step

__all__ = ["CHIPS", "USABLE", "Account", "Chip", "Plan", "Sizes", "check", "plan", "sizes_of"]


class Plan(NamedTuple):
  """Holds the memory, the work and the time that a run would take.

  Attributes:
    config: the run's config, with open chunk sizes chosen for the chip.
    sizes, chip: what the plan is for.
    step: the traced step, by shapes.
    account: what it takes on one device.
    moments: bytes on one device, by moment ('training', 'evaluation') and by part.
  """

  config: ml_collections.ConfigDict
  sizes: Sizes
  chip: Chip
  step: Step
  account: Account
  moments: dict[str, dict[str, float]]

  @property
  def moment(self) -> str:
    """Returns the moment that takes the most memory."""
    return max(self.moments, key=lambda moment: sum(self.moments[moment].values()))

  @property
  def total(self) -> float:
    """Returns the bytes on one device at that moment."""
    return sum(self.moments[self.moment].values())

  @property
  def limit(self) -> float:
    """Returns the bytes of a device that a plan may use."""
    return USABLE * self.chip.memory

  @property
  def seconds(self) -> float:
    """Returns the seconds of a step: of its products, or of the bytes that it moves if these take longer."""
    return max(self.account.seconds, self.account.moved / (OF_BANDWIDTH * self.chip.bandwidth))

  @property
  def steps_per_epoch(self) -> int:
    """Returns the steps of an epoch; 0 if the number of points is unknown."""
    return self.step.steps_per_epoch


def plan(config: ml_collections.ConfigDict, sizes: Sizes, chip: Chip | None = None) -> Plan:
  """Returns the plan of a config, whether it fits or not.

  Args:
    config: a complete config, as for training.
    sizes: of data and encoder; `sizes_of(config)` returns those that the config names.
    chip: None is the one that `config.plan.chip` names.
  """
  chip = chip or CHIPS[config.plan.chip]
  head = models.head_settings(config.encoder, models.modules_of(config.encoder))
  if config.encoder.dtype == "auto":
    head["dtype"] = "bfloat16"
  config = configs.changed(config, {f"encoder.{key}": value for key, value in head.items()})
  memory.trace.cache_clear()  # a method may be another than at the last plan
  chosen = chunks.choose(config, sizes, chip.memory_of_jax, chip.kind)
  config = chunks.changed_method(config, chosen)
  rates = Rates(OF_PEAK * chip.bfloat16, OF_PEAK * chip.float32)
  step, account = memory.traced(config, sizes, rates)
  return Plan(config, sizes, chip, step, account, memory.moments(config, sizes, step, account))


def check(made: Plan) -> None:
  """Raises ConfigError if a plan does not fit; the message names settings that do."""
  if made.total <= made.limit:
    return

  def total(config: ml_collections.ConfigDict) -> float:
    moments = memory.moments(config, made.sizes, *memory.traced(config, made.sizes))
    return made._replace(moments=moments).total

  parts = made.moments[made.moment]
  part = max(parts, key=parts.__getitem__)
  key, advice = remedy(made.config, total, made.limit)
  section, name = key.split(".")
  raise ConfigError(
    f"{key} = {made.config[section][name]!r} does not fit: {made.total / 1e9:,.1f} GB on each device "
    f"in {made.moment}, of it {parts[part] / 1e9:,.1f} GB {part}, and {made.limit / 1e9:,.1f} GB are "
    f"usable of the {made.chip.memory / 1e9:,.0f} GB of {made.config.plan.chip}; {advice}"
  )
