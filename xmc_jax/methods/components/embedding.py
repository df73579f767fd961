"""Embeds the two sides of a step: a batch's points, and the label texts of its pool."""

from collections.abc import Callable
from typing import Any

import jax
import ml_collections

from xmc_jax import models
from xmc_jax.config import Key, declare
from xmc_jax.distributed import sharding
from xmc_jax.ops.grad_cache import Sample, embed_parts
from xmc_jax.types import Array, DatasetInfo

POINTS = declare(
  query_chunk=Key(0, "points that each device encodes at a time (gradient cache); 0: as its memory allows")
)
SETTINGS = declare(
  POINTS,
  label_chunk=Key(0, "labels that each device encodes at a time (gradient cache); 0: as its memory allows"),
  uncached_tokens=Key(
    -1,
    "tokens of label texts on each device that stay out of the gradient cache, which takes a quarter less "
    "time and much more memory; -1: as many as fit, none on a CPU",
    least=-1,
  ),
  dropout_on_labels=Key(True, "False: only the points are embedded with dropout"),
)
# Every device holds an encoder's parameters whole.
ENCODER_RULE = (rf"(^|/)({'|'.join(models.PARAMETERS)})/", ())


def embedders(
  config: ml_collections.ConfigDict, info: DatasetInfo
) -> tuple[Callable[..., Array], Callable[..., Array]]:
  """Returns `(points, texts)`, each `(embed, params, groups, key) -> [n, D]`, with the gradient cache.

  Points are split over the mesh's 'data' axis, texts over all its devices.
  """
  settings = config.method

  def points(embed, params, groups, key):
    params = models.with_rounded_kernels(config.encoder, params)
    (vectors,) = embed_parts(embed, params, [groups], key, chunk=settings.query_chunk, devices=info.mesh)
    return vectors

  parts = part_embedder(config, info)
  return points, lambda embed, params, groups, key: parts(embed, params, [groups], key)[0]


def part_embedder(
  config: ml_collections.ConfigDict, info: DatasetInfo, gradient_share: float = 1.0
) -> Callable[..., list[Array]]:
  """Returns `(embed, params, parts, key) -> [[n, D], ...]`, which embeds several parts in one pass.

  The backward pass goes through a sample of `gradient_share` of the texts.
  """
  settings = config.method

  def embed_all(embed, params, parts, key):
    sample = None
    if gradient_share < 1:
      key, sampling_key = jax.random.split(key)
      sample = Sample(gradient_share, sampling_key)
    key = key if settings.dropout_on_labels else None
    params = models.with_rounded_kernels(config.encoder, params)
    return embed_parts(
      embed,
      params,
      parts,
      key,
      chunk=settings.label_chunk,
      devices=info.mesh,
      axes=sharding.LABEL_ROWS,
      uncached_tokens=max(0, settings.uncached_tokens),
      sample=sample,
    )

  return embed_all


def encoder(config: ml_collections.ConfigDict, info: DatasetInfo, **changes: Any) -> models.Embedder:
  """Builds the encoder of `config.encoder`, in which `changes` replace settings."""
  settings = ml_collections.ConfigDict({**config.encoder.to_dict(), **changes})
  return models.build(settings, vocab_size=info.vocab_size, special_ids=info.special_ids)
