"""Chooses, by a device's memory, what a config leaves open: chunk sizes, and what is not in chunks.

All sizes are per device.
"""

import ml_collections

from xmc_jax import models
from xmc_jax.console import say
from xmc_jax.data import Dataset
from xmc_jax.distributed import runtime
from xmc_jax.models import EncoderSpec
from xmc_jax.plan import device_memory, texts
from xmc_jax.plan.chips import USABLE
from xmc_jax.plan.sizes import Sizes, sizes_of_data

# Sizes that fit a CPU's caches; 0 means a single chunk.
_ON_CPU = {"label_chunk": 1024, "query_chunk": 0, "score_chunk": 4096}
# Larger chunks are not faster. Chunks of long texts have fewer texts.
_MOST_TEXTS, _MOST_TOKENS, _MOST_SCORED = 16_384, 131_072, 16_384
_HALVINGS, _BYTES_PER_NUMBER = 9, 4
_SHARES = 16  # of the labels' tokens, tried outside the gradient cache
_LEAST_SHARE = 0.1  # of the labels' tokens; fewer save less than 2 % of a step, for a longer compilation
_MOST_NUMBERS = 2**31  # in one array: GPU kernels count with 32 bits
# Scores that a step keeps: at most so many bytes on a CPU, and this share of an accelerator's memory, which
# would save more time outside the gradient cache.
_MOST_KEPT_ON_CPU, _MOST_KEPT = 2**30, 1 / 16


def choose(config: ml_collections.ConfigDict, sizes: Sizes, memory_bytes: float, kind: str) -> dict[str, int]:
  """Returns the chunk sizes that a config leaves open: the largest that fit and still gain speed.

  Args:
    config: the run's config, including its mesh.
    sizes: of its data and encoder.
    memory_bytes: memory of one device; 0 if unknown.
    kind: 'gpu', 'tpu' or 'cpu'; for 'cpu', or if the memory is unknown, the sizes are constants.

  Returns:
    Keys of `config.method` and their values; if nothing fits, those that take the least memory. Labels that
    fit into what an accelerator has left stay out of the gradient cache.
  """
  found = _sizes(config, sizes, memory_bytes, kind)
  if config.method.get("keep_scores", 0) < 0:
    whole = changed(config, {f"method.{key}": size for key, size in {**found, "keep_scores": 1}.items()})
    found["keep_scores"] = int(_keeps_scores(whole, sizes, memory_bytes, kind))
  if kind != "cpu" and memory_bytes and config.method.get("uncached_tokens", 0) < 0:
    whole = changed(config, {f"method.{key}": size for key, size in found.items()})
    found["uncached_tokens"] = _uncached_tokens(whole, sizes, memory_bytes, kind)
  return found


def _keeps_scores(config: ml_collections.ConfigDict, sizes: Sizes, memory_bytes: float, kind: str) -> bool:
  """Returns whether the scores of a step, which `config` keeps, take little memory."""
  numbers = device_memory.kept_scores(config, sizes)
  if kind == "cpu" or not memory_bytes:
    return 0 < _BYTES_PER_NUMBER * numbers <= _MOST_KEPT_ON_CPU
  few = 0 < numbers <= min(_MOST_NUMBERS, _MOST_KEPT * memory_bytes / _BYTES_PER_NUMBER)
  return few and device_memory.peak_of_steps(config, sizes, kind) <= USABLE * memory_bytes


def _uncached_tokens(config: ml_collections.ConfigDict, sizes: Sizes, memory_bytes: float, kind: str) -> int:
  """Returns how many tokens of labels fit outside the gradient cache, which saves a transformer time."""
  label = texts.label_texts(config, sizes)
  if not label.cached or not isinstance(sizes.encoder, EncoderSpec):
    return 0
  most = min(label.rows * label.tokens, _MOST_NUMBERS / sizes.encoder.ffn_width)
  fewest = _LEAST_SHARE * label.rows * label.tokens
  for tokens in (int(most * share / _SHARES) for share in range(_SHARES, 0, -1)):
    if tokens < fewest:
      break
    whole = changed(config, {"method.uncached_tokens": tokens})
    if device_memory.peak_of_steps(whole, sizes, kind) <= USABLE * memory_bytes:
      return tokens
  return 0


def _sizes(config: ml_collections.ConfigDict, sizes: Sizes, memory_bytes: float, kind: str) -> dict[str, int]:
  """Returns the chunk sizes that a config leaves open."""
  open_keys = [key for key in _ON_CPU if key in config.method and not config.method[key]]
  if kind == "cpu" or not memory_bytes:
    return {key: _ON_CPU[key] for key in open_keys}
  most_texts = min(_MOST_TEXTS, _MOST_TOKENS // 2 ** (config.data.max_length - 1).bit_length())
  most = {"label_chunk": most_texts, "query_chunk": most_texts, "score_chunk": _MOST_SCORED}
  tried = [{key: most[key] >> halvings for key in open_keys} for halvings in range(_HALVINGS)]

  def taken(values: dict[str, int]) -> float:
    whole = changed(config, {f"method.{key}": value for key, value in values.items()})
    return max(device_memory.peak_of_steps(whole, sizes, kind), USABLE * memory_bytes)

  return min(tried, key=taken)  # all that fit are equal here, so the largest of them wins


def choose_here(config: ml_collections.ConfigDict, dataset: Dataset) -> dict[str, int]:
  """Runs `choose` for this process's devices and a `data.Dataset`; prints the chosen sizes.

  A CPU's are always the same, and are not printed.
  """
  kind, memory_bytes = runtime.device()
  spec = models.build(config.encoder, vocab_size=dataset.tokenizer().get_vocab_size()).spec
  found = choose(config, sizes_of_data(config, dataset, spec), memory_bytes, kind)
  if found and kind != "cpu":
    say(f"chosen for this {kind}: " + ", ".join(f"method.{key} = {size:,}" for key, size in found.items()))
  return found


def changed(config: ml_collections.ConfigDict, values: dict[str, object]) -> ml_collections.ConfigDict:
  """Returns a copy of a config with new values for dotted keys."""
  copy = ml_collections.ConfigDict(config.to_dict())
  copy.update_from_flattened_dict(values)
  return copy
