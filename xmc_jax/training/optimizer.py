"""Builds the optimiser: AdamW, decay mask, schedules, clipping. docs/formulas.md, "Optimiser"."""

import functools
import re
from typing import NamedTuple

import jax
import ml_collections
import optax

from xmc_jax import models
from xmc_jax.distributed.sharding import path_name
from xmc_jax.types import PyTree

# Biases, and LayerNorms' gains. Matching 'LayerNorm.weight' alone, as DEXA's released code does, would
# miss DistilBERT's sa_layer_norm and output_layer_norm.
_NO_DECAY = re.compile(r"(^|/)(bias|table)$|layer_?norm", re.IGNORECASE)
_TABLE = re.compile(r"(^|/)table$")  # has a row per label, its own learning rate, and no decay
_HEAD = re.compile(r"(^|/)(projection|prototype)/")  # layers between the encoder and the scored vector


class Optimizer(NamedTuple):
  """Trains the parameters of a method.

  Attributes:
    dense: updates all parameters except tables.
    table_rate: the learning rate of the tables' lazy Adam (`ops.lazy_adam`), by step.
  """

  dense: optax.GradientTransformation
  table_rate: optax.Schedule


def make(config: ml_collections.ConfigDict, total_steps: int) -> Optimizer:
  """Returns the optimiser of a run's config; its schedules reach 0 at `total_steps`."""
  frozen = models.frozen_paths(config.encoder)
  return Optimizer(adamw(config.train, total_steps, frozen), table_schedule(config.train, total_steps))


def decay_mask(params: PyTree) -> PyTree:
  """Returns True for the leaves that weight decay shrinks."""
  return jax.tree.map(lambda found: not found, _matching(_NO_DECAY, params))


def schedule(train_config: ml_collections.ConfigDict, total_steps: int) -> optax.Schedule:
  """Returns the rate by step: linear warm-up, then linear or cosine decay to 0 at `total_steps`."""
  peak = train_config.learning_rate
  warmup_steps = train_config.warmup_steps or round(train_config.warmup_fraction * total_steps)
  warmup_steps = max(0, min(warmup_steps, total_steps - 1))
  decay_steps = max(1, total_steps - warmup_steps)
  if train_config.schedule == "cosine":
    decay = optax.cosine_decay_schedule(peak, decay_steps)
  else:
    decay = optax.linear_schedule(peak, 0.0, decay_steps)
  if not warmup_steps:
    return decay
  # The first step already changes the parameters: its rate is peak / (warm-up + 1), not 0.
  warmup = optax.linear_schedule(peak / (warmup_steps + 1), peak, warmup_steps)
  return optax.join_schedules([warmup, decay], [warmup_steps])


def table_schedule(train_config: ml_collections.ConfigDict, total_steps: int) -> optax.Schedule:
  """Returns `schedule` with the peak `train.table_learning_rate`, for tables of labels or clusters."""
  ratio = train_config.table_learning_rate / train_config.learning_rate
  rate = schedule(train_config, total_steps)
  return lambda step: ratio * rate(step)


def adamw(
  train_config: ml_collections.ConfigDict, total_steps: int, frozen: tuple[str, ...] = ()
) -> optax.GradientTransformation:
  """Returns AdamW as in DEXML, section B.2: decay on everything but biases and LayerNorm gains.

  Args:
    train_config: `config.train`.
    total_steps: when the schedule reaches 0.
    frozen: beginnings of the paths of parameters that stay unchanged, also by weight decay.
  """
  parts = [optax.clip_by_global_norm(train_config.clip_norm)] if train_config.clip_norm else []
  rate = schedule(train_config, total_steps)
  parts.append(optax.adamw(rate, weight_decay=train_config.weight_decay, mask=decay_mask))
  # Adam's step is linear in the rate, so scaling the update changes the rate.
  rates = {_TABLE: train_config.table_learning_rate, _HEAD: train_config.head_learning_rate}
  for pattern, peak in rates.items():
    if peak:
      mask = functools.partial(_matching, pattern)
      parts.append(optax.masked(optax.scale(peak / train_config.learning_rate), mask))
  if frozen:
    below = re.compile(f"^({'|'.join(map(re.escape, frozen))})")
    parts.append(optax.masked(optax.set_to_zero(), functools.partial(_matching, below)))
  return optax.chain(*parts)


def _matching(pattern: re.Pattern[str], params: PyTree) -> PyTree:
  """Returns True for the leaves whose path matches a pattern."""
  return jax.tree_util.tree_map_with_path(lambda path, _: bool(pattern.search(path_name(path))), params)
