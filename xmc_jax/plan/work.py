"""Estimates FLOPs and memory traffic of a step, and the time that a chip takes for them."""

from typing import NamedTuple

import ml_collections

from xmc_jax.models import BagSpec, EncoderSpec, GruSpec
from xmc_jax.plan.activations import dropped_by_network, per_token
from xmc_jax.plan.chips import OF_BANDWIDTH, OF_PEAK, Chip
from xmc_jax.plan.shapes import (
  batch_rows,
  classifier_dim,
  embedding_width,
  has_prototypes,
  parameters,
  picks_some,
  pool_size,
  prototype_network,
  remembers_points,
  scores_whole,
  setting,
  vectors_of_label,
)
from xmc_jax.plan.sizes import Sizes
from xmc_jax.plan.texts import Texts, label_texts, query_texts

# Passes over all scores before the backward pass; SoftTop-k searches for a threshold.
_PASSES = {
  "softmax": 1,
  "decoupled_softmax": 1,
  "binary": 1,
  "soft_top_k": 8,
  "margin": 1,
  "dynamic_margin": 1,
}
_PRODUCTS_OF_PARTS = {"auto": 3, "bf16x3": 3, "bf16x6": 6, "bfloat16": 1}  # by method.score_precision
_TRIPS = 4  # times that a pass writes or reads a chunk of scores in memory
_BYTES_PER_NUMBER = 4


class Stage(NamedTuple):
  """Holds the cost of a part of a step, on one device.

  Attributes:
    flops: FLOPs of its products.
    bytes: bytes read and written.
    seconds: the larger of the times for the two, at the assumed shares of the chip's peak rates.
  """

  flops: float
  bytes: float
  seconds: float


def stages(config: ml_collections.ConfigDict, sizes: Sizes, chip: Chip) -> dict[str, Stage]:
  """Returns the stages of a step on one device, by name; leaves out collectives, the host and input."""
  settings = config.encoder
  encoder_rate = chip.bfloat16 / (2 if settings.dtype == "float32" else 1)
  heads = {
    "queries": settings.projection_dim + classifier_dim(config, sizes),
    "labels": settings.projection_dim,
  }
  encoding = {
    f"encode {name}": _encode(texts, heads[name], config, sizes, chip, encoder_rate)
    for name, texts in (("queries", query_texts(config, sizes)), ("labels", label_texts(config, sizes)))
    if texts.rows
  }
  columns, network = pool_size(config, sizes), prototype_network(config, sizes)
  if network:
    vectors, rows = vectors_of_label(config), label_texts(config, sizes).rows
    flops = rows * 3 * block_flops(network, vectors)
    kept = per_token(config, network, vectors, chip.kind, dropped_by_network(config.method))
    size = rows * 3 * vectors * kept.waiting
    encoding["mix prototypes"] = _stage(flops, size, encoder_rate, chip)
  table_weights = 0  # in the table rows that a step reads and writes, with their moments
  if config.method.labels == "table":
    table_weights = columns / config.mesh.label * (embedding_width(config, sizes) + 1)
  if dim := classifier_dim(config, sizes):
    table_weights = columns * dim
  return {
    **encoding,
    "score": _score(config, sizes, chip),
    # Reads parameters, two moments and gradients; writes the first three.
    "optimise": _stage(
      0, 7 * _BYTES_PER_NUMBER * (parameters(config, sizes) + table_weights), chip.float32, chip
    ),
  }


def _score(config: ml_collections.ConfigDict, sizes: Sizes, chip: Chip) -> Stage:
  """Returns the cost of scores and loss, forward and backward."""
  rows, columns = batch_rows(config, sizes) / config.mesh.data, pool_size(config, sizes) / config.mesh.label
  if remembers_points(sizes):
    columns += batch_rows(config, sizes)
  if setting(config, "num_fresh_negatives"):  # all of the cache is scored to find them
    columns += sizes.num_labels / config.mesh.label
  settings, scored, dim = config.method, embedding_width(config, sizes), classifier_dim(config, sizes)
  cells, passes = rows * columns, _PASSES.get(settings.loss, 1)
  if has_prototypes(config):  # by prototypes, by texts, and by texts against points
    cells *= 2 + (setting(config, "reverse_weight") > 0)
  if not picks_some(config, sizes):
    # Passes over the labels; unless it keeps the scores, each multiplies again, also the backward one.
    times_scored = 1 if setting(config, "keep_scores") > 0 else passes + 1
    return _stage(
      2 * cells * scored * (times_scored + 2),
      _BYTES_PER_NUMBER * (cells * _TRIPS * (passes + 1) + columns * scored * (times_scored + 4)),
      rate_of_scores(config, chip),
      chip,
    )
  # All scores are kept, not recomputed; every loss reads them, once per direction.
  with_binary = dim > 0 and setting(config, "binary_weight") > 0
  times = (1 + setting(config, "symmetric")) * (1 + (dim > 0)) + with_binary
  return _stage(
    2 * cells * (scored + dim) * 3,
    _BYTES_PER_NUMBER * (cells * _TRIPS * (passes + 1) * times + columns * (scored + dim) * 6),
    chip.float32,
    chip,
  )


def rate_of_scores(config: ml_collections.ConfigDict, chip: Chip) -> float:
  """Returns the peak FLOP/s of the products that are scores, as `ops.precision.algorithm` multiplies them."""
  products = _PRODUCTS_OF_PARTS.get(config.method.get("score_precision", "float32"))
  if products is None or scores_whole(config) or chip.kind == "cpu":
    return chip.float32
  return chip.bfloat16 / products


def _stage(flops: float, size: float, rate: float, chip: Chip) -> Stage:
  return Stage(flops, size, max(flops / (OF_PEAK * rate), size / (OF_BANDWIDTH * chip.bandwidth)))


def _encode(
  texts: Texts, head: int, config: ml_collections.ConfigDict, sizes: Sizes, chip: Chip, rate: float
) -> Stage:
  """Returns the cost of encoding texts; the gradient cache and remat each add a forward pass.

  `head` is the output width of the layers on the pooled vector; 0 means no layer.
  """
  settings, spec, tokens = config.encoder, sizes.encoder, texts.tokens
  share_of_cached = texts.cached * (1 - texts.uncached_tokens / (texts.rows * tokens))
  again = share_of_cached + (settings.remat and not isinstance(spec, BagSpec))
  if isinstance(spec, BagSpec):
    pooled = 2 * tokens * spec.width
    flops = (3 + again) * pooled
    size = (
      _BYTES_PER_NUMBER * tokens * spec.width * (1 + again + 2)
    )  # gathered, and scattered back (read, written)
  elif isinstance(spec, GruSpec):
    flops = (3 + again) * tokens * (6 * spec.embedding_width * spec.width + 3 * spec.width**2)
    size = 3 * tokens * per_token(config, spec, tokens, chip.kind).waiting
  else:
    frozen = settings.num_frozen_layers
    flops = (3 + again) * forward_flops(settings, spec, tokens, frozen) + (1 + share_of_cached) * (
      forward_flops(settings, spec, tokens) - forward_flops(settings, spec, tokens, frozen)
    )
    kept = per_token(config, spec, tokens, chip.kind)
    size = 3 * tokens * kept.waiting  # written, read, and once more written or read between fused loops
  flops += (3 + again) * 2 * spec.width * head
  return _stage(texts.rows * flops, texts.rows * size, rate, chip)


def forward_flops(
  settings: ml_collections.ConfigDict, spec: EncoderSpec, tokens: float, first_layer: int = 0
) -> float:
  """Returns one text's FLOPs of the blocks from `first_layer` on: two per weight and token, and attention.

  With CLS pooling the last block computes keys and values for all tokens, and the rest for one token.
  """
  width, inner = spec.width, spec.ffn_width
  block = block_flops(spec, tokens)
  last = tokens * 4 * width**2 + 4 * width**2 + (4 + 2 * spec.gated) * width * inner + 4 * tokens * width
  num_blocks = spec.num_layers - first_layer
  if not num_blocks or settings.pooling != "cls":
    return num_blocks * block
  return (num_blocks - 1) * block + last


def block_flops(spec: EncoderSpec, tokens: float) -> float:
  """Returns the FLOPs of one block for one text."""
  products = 4 + 2 * spec.gated
  return tokens * (8 * spec.width + products * spec.ffn_width) * spec.width + 4 * tokens**2 * spec.width
