"""Describes the texts that a step encodes, and the bytes of their activations."""

import math
from typing import NamedTuple

import ml_collections

from xmc_jax.plan.activations import Kept, per_token
from xmc_jax.plan.shapes import anchor_rows, batch_rows, pool_size, setting, trains_encoder
from xmc_jax.plan.sizes import Sizes

_BYTES_PER_NUMBER = 4  # bytes of an int32
_PADDING = 4.0  # average padding of a text, in tokens, as widths are multiples of 8


class Texts(NamedTuple):
  """Describes the texts that a step encodes.

  Attributes:
    rows: texts on one device.
    at_once: how many of these are encoded together.
    tokens: average tokens of a text, padding included.
    longest: the most tokens of a text.
    cached: whether they are encoded in chunks, with the gradient cache.
    uncached_tokens: tokens on one device that stay out of the gradient cache although others are in it.
  """

  rows: int
  at_once: int
  tokens: float
  longest: float
  cached: bool
  uncached_tokens: float = 0.0

  @property
  def size(self) -> float:
    """Returns the bytes of their token ids and lengths."""
    return _BYTES_PER_NUMBER * self.rows * (self.tokens + 1)

  def activations(self, config: ml_collections.ConfigDict, sizes: Sizes, kind: str) -> Kept:
    """Returns the bytes until and during the backward pass; assumes that a chunk has the longest texts."""
    tokens = self.longest if self.cached else self.tokens
    waiting, working = (
      self.at_once * tokens * kept for kept in per_token(config, sizes.encoder, tokens, kind)
    )
    if not self.cached:
      return Kept(waiting, working)
    of_uncached = per_token(config, sizes.encoder, self.tokens, kind)
    return Kept(
      self.uncached_tokens * of_uncached.waiting,
      max(waiting + working, self.uncached_tokens * of_uncached.working),
    )


_NO_TEXTS = Texts(0, 0, 1.0, 1.0, False)


def query_texts(config: ml_collections.ConfigDict, sizes: Sizes) -> Texts:
  """Returns the queries of a step: split over 'data', copied over 'label'; none if the encoder is frozen."""
  if not trains_encoder(sizes):
    return _NO_TEXTS
  rows, chunk = batch_rows(config, sizes), setting(config, "query_chunk")
  return _texts(config, rows, config.mesh.data, chunk, sizes.tokens_per_point)


def label_texts(config: ml_collections.ConfigDict, sizes: Sizes) -> Texts:
  """Returns the label and anchor texts of a step, split over all devices; none if labels have a table."""
  if config.method.labels in ("table", "in_batch_table"):
    return _NO_TEXTS
  shards = config.mesh.data * config.mesh.label
  rows = pool_size(config, sizes) + anchor_rows(config, sizes)
  texts = _texts(config, rows, shards, setting(config, "label_chunk"), sizes.tokens_per_label)
  uncached = max(0, setting(config, "uncached_tokens"))
  if not texts.cached or uncached >= texts.rows * texts.tokens:  # then no chunk is left
    return texts._replace(cached=False, at_once=texts.rows)
  return texts._replace(uncached_tokens=uncached)


def _texts(config: ml_collections.ConfigDict, rows: int, shards: int, chunk: int, tokens: float) -> Texts:
  """Returns the texts of queries or labels, split over `shards` devices; `chunk` is rows per device."""
  longest = float(config.data.max_length)
  cached = 0 < chunk * shards < rows
  num_chunks = math.ceil(rows / (chunk * shards)) if cached else 1
  at_once = math.ceil(rows / (num_chunks * shards))
  return Texts(math.ceil(rows / shards), at_once, min(longest, tokens + _PADDING), longest, cached)
