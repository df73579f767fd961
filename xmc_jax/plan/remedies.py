"""Suggests changes to a config that does not fit; every suggested value was planned again, and fits."""

import itertools
from collections.abc import Callable, Iterator

import ml_collections

from xmc_jax.plan.chunks import changed
from xmc_jax.plan.shapes import opens_sources

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

Total = Callable[[ml_collections.ConfigDict], float]


def remedy(config: ml_collections.ConfigDict, total: Total, limit: float) -> str:
  """Describes which keys to set so that a config fits.

  Args:
    config: a config that does not fit.
    total: returns the bytes that a config takes on each device.
    limit: the usable bytes of a device.
  """
  alone = []
  for key in _KEYS:
    for value in _smaller(config, key):
      if (size := total(changed(config, {key: value}))) <= limit:
        alone.append(f"--config.{key}={value} ({size / 1e9:,.1f} GB)")
        break
  if alone:
    return f"set {', or '.join(alone[:_MOST_SUGGESTIONS])}"
  if together := _together(config, total, limit):
    size = total(changed(config, together)) / 1e9
    return f"set {' '.join(f'--config.{key}={value}' for key, value in together.items())} ({size:,.1f} GB)"
  return f"no chunk size, batch or mesh.label of up to {_MOST_DEVICES:,} devices fits; take a smaller encoder"


def _together(config: ml_collections.ConfigDict, total: Total, limit: float) -> dict[str, object]:
  """Returns several changes that fit together, each the first one that saves memory; {} if none fit."""
  values: dict[str, object] = {}
  size = total(config)
  while size > limit:
    now = changed(config, values)
    for step in ({key: value} for key in _KEYS for value in itertools.islice(_smaller(now, key), 1)):
      if (less := total(changed(now, step))) < size:
        values, size = values | step, less
        break
    else:
      return {}
  return values


def _smaller(config: ml_collections.ConfigDict, key: str) -> Iterator[object]:
  """Yields values that take less memory than the current one, the smallest change first."""
  section, name = key.split(".")
  if name not in config[section]:  # a setting that the method does not have
    return
  now, data = config[section][name], config.mesh.data
  if key == "encoder.remat":
    yield from () if now or config.encoder.name == "bag" else (True,)
  elif key == "eval.scores":  # then no training points are searched
    yield from ("fused",) if opens_sources(config) else ()
  elif key in ("method.uncached_tokens", "method.keep_scores"):
    yield from (0,) if now > 0 else ()
  elif key == "mesh.label":
    yield from itertools.takewhile(lambda value: value * data <= _MOST_DEVICES, _doubled(now))
  elif key == "train.batch_size":
    yield from (value for value in _halved(now, data) if value % data == 0)
  elif key in ("method.score_chunk", "method.pool_size"):
    yield from _halved(now, _FEWEST_SCORED)
  elif key == "method.query_chunk":
    yield from _halved(min(now, -(-config.train.batch_size // data)), _FEWEST_TEXTS)
  else:
    yield from _halved(now, _FEWEST_TEXTS)


def _halved(value: int, smallest: int) -> Iterator[int]:
  while value // 2 >= smallest:
    value //= 2
    yield value


def _doubled(value: int) -> Iterator[int]:
  while True:
    value *= 2
    yield value
