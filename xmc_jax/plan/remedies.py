"""Suggests changes to a config that does not fit; every suggested value was planned again, and fits."""

import functools
import itertools
from collections.abc import Callable, Sequence

import ml_collections

from xmc_jax.config import changed
from xmc_jax.plan.chunks import first_that
from xmc_jax.plan.memory import opens_sources

_FEWEST_TEXTS = 16  # texts encoded together on one device, at least
_FEWEST_SCORED = 256  # labels scored at once, at least
_MOST_DEVICES = 65_536
# From the least to the most extra time; keys that change what is learnt come last.
_KEYS = (
  "method.uncached_tokens",
  "method.keep_scores",
  "method.query_chunk",
  "method.label_chunk",
  "method.score_chunk",
  "encoder.remat",
  "mesh.label",
  "eval.scores",
  "train.batch_size",
  "method.pool_size",
)
_MOST_SUGGESTIONS = 3  # suggestions in one line, at most


def remedy(
  config: ml_collections.ConfigDict, total: Callable[[ml_collections.ConfigDict], float], limit: float
) -> tuple[str, str]:
  """Returns the key to change so that a config's `total` bytes on each device fit, and advice in words."""

  @functools.cache
  def total_with(*values: tuple[str, object]) -> float:
    return total(changed(config, dict(values)))

  def advice(values: dict[str, object]) -> str:
    flags = " ".join(f"--config.{key}={value}" for key, value in values.items())
    return f"{flags} ({total_with(*values.items()) / 1e9:,.1f} GB)"

  together: dict[str, object] = {}
  alone: list[dict[str, object]] = []
  for key in _KEYS:
    if len(alone) == _MOST_SUGGESTIONS:
      break
    values = _smaller(config, key)
    fits = lambda value, key=key: total_with((key, value)) <= limit
    if not values or not fits(values[-1]):
      together |= {key: values[-1]} if values else {}
    else:
      alone.append({key: first_that(fits, values)})
  if alone:
    return next(iter(alone[0])), "set " + ", or ".join(map(advice, alone))
  for number in range(2, len(together) + 1):
    first = dict(itertools.islice(together.items(), number))
    if total_with(*first.items()) <= limit:
      return next(iter(first)), f"set {advice(first)}"
  return "encoder.name", (
    f"no chunk size, batch or mesh.label of up to {_MOST_DEVICES:,} devices fits; take a smaller encoder"
  )


def _smaller(config: ml_collections.ConfigDict, key: str) -> Sequence[object]:
  """Returns values that take less memory than the current one, the smallest change first."""
  section, name = key.split(".")
  if name not in config[section]:  # a setting that the method does not have
    return []
  now, data = config[section][name], config.mesh.data
  match key:
    case "encoder.remat":
      return [] if now or config.encoder.name == "bag" else [True]
    case "eval.scores":  # then no training points are searched
      return ["fused"] if opens_sources(config) else []
    case "method.uncached_tokens" | "method.keep_scores":
      return [0] if now > 0 else []
    case "mesh.label":
      return [now << power for power in range(1, 17) if (now << power) * data <= _MOST_DEVICES]
    case "train.batch_size":
      return [value for value in _halved(now, data) if value % data == 0]
    case "method.score_chunk" | "method.pool_size":
      return _halved(now, _FEWEST_SCORED)
    case "method.query_chunk":
      return _halved(min(now, -(-config.train.batch_size // data)), _FEWEST_TEXTS)
  return _halved(now, _FEWEST_TEXTS)


def _halved(value: int, smallest: int) -> list[int]:
  return [value >> power for power in range(1, 32) if value >> power >= smallest]
