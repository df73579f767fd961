"""Chooses, by a device's memory, what a config leaves open: chunk sizes, and what is not in chunks.

All sizes are per device.
"""

import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import ml_collections

from xmc_jax import config as configs
from xmc_jax import models
from xmc_jax.console import say
from xmc_jax.data import Dataset
from xmc_jax.distributed import runtime
from xmc_jax.plan import memory
from xmc_jax.plan.chips import USABLE
from xmc_jax.plan.sizes import Sizes, sizes_of_data
from xmc_jax.plan.step import make

# Sizes that fit a CPU's caches; 0 means a single chunk.
_ON_CPU = {"label_chunk": 1024, "query_chunk": 0, "score_chunk": 4096}
# Larger chunks are not faster. Chunks of long texts have fewer texts.
_MOST_TEXTS, _MOST_TOKENS, _MOST_SCORED = 16_384, 131_072, 16_384
_HALVINGS, _BYTES_PER_NUMBER = 9, 4
_SHARES = 8  # of the labels' tokens, tried outside the gradient cache; fewer than one saves little of a step
_MOST_NUMBERS = 2**31  # in one array: GPU kernels count with 32 bits
_MOST_IN_ARRAY = _BYTES_PER_NUMBER * _MOST_NUMBERS
# Scores that a step keeps: at most so many bytes on a CPU, and this share of an accelerator's memory, which
# would save more time outside the gradient cache.
_MOST_KEPT_ON_CPU, _MOST_KEPT = 2**30, 1 / 16

Value = TypeVar("Value")


def choose(config: ml_collections.ConfigDict, sizes: Sizes, memory_bytes: float, kind: str) -> dict[str, int]:
  """Returns the chunk sizes that a config leaves open: the largest that fit and still gain speed.

  Args:
    config, sizes: of a run.
    memory_bytes: of one device; 0 if unknown.
    kind: 'gpu', 'tpu' or 'cpu'; for 'cpu', or if the memory is unknown, the sizes are constants.

  Returns:
    Keys of `config.method` and their values; if nothing fits, the smallest. Labels that fit into what an
    accelerator has left stay out of the gradient cache.
  """
  method, on_cpu = config.method, kind == "cpu" or not memory_bytes
  open_keys = [key for key in _ON_CPU if key in method and not method[key]]
  keep, cached = {}, {}
  if method.get("keep_scores", 0) < 0:
    most_kept = _MOST_KEPT_ON_CPU if on_cpu else min(_MOST_IN_ARRAY, _MOST_KEPT * memory_bytes)
    keep = {"keep_scores": int(0 < _bytes_of_scores(config, sizes) <= most_kept)}
  if on_cpu:
    return {key: _ON_CPU[key] for key in open_keys} | keep
  texts = min(_MOST_TEXTS, _MOST_TOKENS // 2 ** (config.data.max_length - 1).bit_length())
  most = {"label_chunk": texts, "query_chunk": texts, "score_chunk": _MOST_SCORED}
  chunks = [{key: most[key] >> halvings for key in open_keys} for halvings in range(_HALVINGS)]
  tried = []
  if method.get("uncached_tokens", 0) < 0:
    cached = {"uncached_tokens": 0}
    shares = _shares(changed_method(config, chunks[0]), sizes)
    tried = [chunks[0] | keep | {"uncached_tokens": tokens} for tokens in shares]
  tried += [sizes_of_chunks | keep | cached for sizes_of_chunks in chunks]
  tried.append(tried[-1] | dict.fromkeys(keep, 0))

  def fits(values: dict[str, int]) -> bool:
    return memory.peak(changed_method(config, values), sizes) <= USABLE * memory_bytes

  return (first_that(fits, tried) or tried[-1]) if tried[-1] else {}


def _bytes_of_scores(config: ml_collections.ConfigDict, sizes: Sizes) -> float:
  """Returns the bytes of all scores of a step on one device; 0 where keeping them changes nothing."""
  if "margin" in config.method.loss:
    return 0
  step = make(config, sizes)
  columns = sizes.num_labels if step.method.batch.num_fresh_negatives else step.columns
  return _BYTES_PER_NUMBER * step.rows / config.mesh.data * -(-columns // config.mesh.label)


def _shares(config: ml_collections.ConfigDict, sizes: Sizes) -> list[int]:
  """Returns numbers of tokens of labels, the largest first, that may stay out of the gradient cache."""
  groups, shards = make(config, sizes).batch.labels, config.mesh.data * config.mesh.label
  rows = sum(group.lengths.size for group in groups)
  tokens = sum(group.ids.size for group in groups) // shards
  is_cached = 0 < config.method.label_chunk * shards < rows
  if not (is_cached and isinstance(sizes.encoder, models.EncoderSpec)):
    return []
  most = min(tokens, _MOST_NUMBERS // sizes.encoder.ffn_width)
  shares = [most * share // _SHARES for share in range(_SHARES, 0, -1)]
  return [share for share in shares if share * _SHARES >= tokens]


def first_that(fits: Callable[[Value], bool], values: Sequence[Value]) -> Value | None:
  """Returns the first of values, of which each takes less memory than the one before, that fits; or None."""
  if values and fits(values[0]):
    return values[0]
  place = bisect.bisect_left(values, True, lo=min(1, len(values)), key=fits)
  return values[place] if place < len(values) else None


def choose_here(config: ml_collections.ConfigDict, dataset: Dataset) -> dict[str, int]:
  """Runs `choose` for this process's devices and a `data.Dataset`; prints the chosen sizes.

  A CPU's are always the same, and are not printed.
  """
  kind, memory_bytes = runtime.device()
  spec = models.build(config.encoder, vocab_size=dataset.tokenizer().get_vocab_size()).spec
  chosen = choose(config, sizes_of_data(config, dataset, spec), memory_bytes, kind)
  if chosen and kind != "cpu":
    say(f"chosen for this {kind}: " + ", ".join(f"method.{key} = {size:,}" for key, size in chosen.items()))
  return chosen


def changed_method(config: ml_collections.ConfigDict, values: Mapping[str, int]) -> ml_collections.ConfigDict:
  """Returns a copy of a config with new values for keys of `config.method`."""
  return configs.changed(config, {f"method.{key}": value for key, value in values.items()})
