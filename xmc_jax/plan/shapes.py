"""Computes the sizes of a step: its points and labels, embedding widths, and numbers that are trained."""

import math
from typing import Any

import ml_collections

from xmc_jax.batching.epochs import epoch_shape
from xmc_jax.batching.positives import num_sampled
from xmc_jax.config import SOURCES
from xmc_jax.models import BagSpec, EncoderSpec, GruSpec, hf_names
from xmc_jax.plan.sizes import Sizes


def setting(config: ml_collections.ConfigDict, name: str) -> Any:
  """Returns a setting of the method; 0 where the method has none of that name."""
  return config.method.get(name, 0)


def parameters(config: ml_collections.ConfigDict, sizes: Sizes) -> int:
  """Returns how many numbers the encoder, its heads and a prototype network have."""
  spec = sizes.encoder
  head = (spec.width + 1) * (config.encoder.projection_dim + classifier_dim(config, sizes))
  if network := prototype_network(config, sizes):
    head += _of_block(network)
  if isinstance(spec, BagSpec):
    return spec.vocab_size * spec.width + head
  if isinstance(spec, GruSpec):
    half, columns = spec.width // 2, spec.embedding_width
    return spec.vocab_size * columns + 2 * (3 * half * (columns + 1) + (3 * half + 1) * half) + head
  return sum(math.prod(hf_names.shape(path, spec)) for path in hf_names.names(spec)) + head


def _of_block(spec: EncoderSpec) -> int:
  width, inner = spec.width, spec.ffn_width
  return 4 * (width + 1) * width + (width + 1) * inner + (inner + 1) * width + 4 * width


def embedding_width(config: ml_collections.ConfigDict, sizes: Sizes) -> int:
  """Returns D, the width of embeddings of texts."""
  return config.encoder.projection_dim or sizes.encoder.width


def ranked_width(config: ml_collections.ConfigDict, sizes: Sizes) -> int:
  """Returns the width of the vectors that labels are ranked by: D, plus that of a second head."""
  return embedding_width(config, sizes) + classifier_dim(config, sizes)


def num_views(config: ml_collections.ConfigDict, sizes: Sizes) -> int:
  """Returns the number of kinds of label vectors: of texts, and of classifiers if there are any."""
  return 1 + (bool(classifier_dim(config, sizes)) or not trains_encoder(sizes))


def views_width(config: ml_collections.ConfigDict, sizes: Sizes) -> int:
  """Returns the summed width of all kinds of vectors that a label can be ranked by."""
  return ranked_width(config, sizes) + embedding_width(config, sizes) * (not trains_encoder(sizes))


def papers_width(config: ml_collections.ConfigDict, sizes: Sizes) -> int:
  """Returns a label's width in the paper's own ranking: by the sum of its views, or by each for a tree."""
  is_tree = num_views(config, sizes) > 1 and config.eval.fusion_rows > 0
  return views_width(config, sizes) if is_tree else ranked_width(config, sizes)


def opens_sources(config: ml_collections.ConfigDict) -> bool:
  """Returns whether an evaluation also ranks by training points and words."""
  return config.eval.scores == "hybrid" or config.eval.scores in SOURCES


def ranks_twice(config: ml_collections.ConfigDict, sizes: Sizes) -> bool:
  """Returns whether the paper's own ranking is computed in addition to the hybrid one, by other vectors."""
  return config.eval.scores == "hybrid" and (num_views(config, sizes) > 1 or remembers_points(sizes))


def batch_is_cluster(sizes: Sizes) -> bool:
  """Returns whether a batch is a cluster of points, a leaf of a tree over them."""
  return sizes.batch.batch_is_cluster


def picks_some(config: ml_collections.ConfigDict, sizes: Sizes) -> bool:
  """Returns whether batches are clusters whose losses use all true pairs in the pool (UniDEC, DEPSL)."""
  return batch_is_cluster(sizes) and not scores_whole(config)


def classifier_dim(config: ml_collections.ConfigDict, sizes: Sizes) -> int:
  """Returns D', the width of a second head and its classifiers, trained with the encoder; 0 if none."""
  return setting(config, "classifier_dim") if setting(config, "encoder_weight") < 1 else 0


def has_prototypes(config: ml_collections.ConfigDict) -> bool:
  """Returns whether a network computes label prototypes from texts and other vectors (PRIME)."""
  return setting(config, "prototype_width") > 0


def prototype_network(config: ml_collections.ConfigDict, sizes: Sizes) -> EncoderSpec | None:
  """Returns the block that computes label prototypes; None if there is none."""
  if not has_prototypes(config):
    return None
  return EncoderSpec("bert", 0, embedding_width(config, sizes), 1, 1, setting(config, "prototype_width"), 0)


def vectors_of_label(config: ml_collections.ConfigDict) -> int:
  """Returns how many vectors a prototype is made of: text, and, if used, centroid and free vector."""
  clustered = any(
    setting(config, name) for name in ("num_label_clusters", "num_head_labels", "head_label_points")
  )
  return 1 + (config.method.get("centroids", "none") != "none") + clustered


def remembers_points(sizes: Sizes) -> bool:
  """Returns whether points are keys like labels, so that a batch scores its other points too (RAE-XMC)."""
  return sizes.batch.shared


def trains_encoder(sizes: Sizes) -> bool:
  """Returns whether the encoder is trained; not if classifiers are trained on a frozen one."""
  return not sizes.batch.frozen


def row_sparse(config: ml_collections.ConfigDict, sizes: Sizes) -> int:
  """Returns the numbers, on one device, in tables of which a step touches only some rows."""
  rows = setting(config, "num_label_clusters") + setting(config, "num_head_labels")
  width = embedding_width(config, sizes)
  if not trains_encoder(sizes):
    rows = sizes.num_labels
  elif dim := classifier_dim(config, sizes):
    rows, width = sizes.num_labels, dim
  return math.ceil(rows / (config.mesh.data * config.mesh.label)) * width


def scores_whole(config: ml_collections.ConfigDict) -> bool:
  """Returns whether every device of the 'label' axis holds all scores of a row at once."""
  return config.method.loss in ("margin", "dynamic_margin")


def epoch(config: ml_collections.ConfigDict, sizes: Sizes) -> tuple[int, int]:
  """Returns `(steps of an epoch, B over all devices)`; 0 steps if the number of points is unknown."""
  size = config.train.batch_size
  if not sizes.num_points:
    return 0, size
  return epoch_shape(sizes.num_points, size, config.mesh.data, batch_is_cluster(sizes))


def batch_rows(config: ml_collections.ConfigDict, sizes: Sizes) -> int:
  """Returns B, over all devices."""
  return epoch(config, sizes)[1]


def pool_size(config: ml_collections.ConfigDict, sizes: Sizes) -> int:
  """Returns S, the number of labels that a step's queries are scored against."""
  settings, batch = config.method, batch_rows(config, sizes)
  if settings.labels not in ("in_batch", "in_batch_table"):
    return sizes.num_labels
  most = min(setting(config, "pool_size") or sizes.num_labels, sizes.num_labels)
  if setting(config, "pool_size") and picks_some(config, sizes) and not setting(config, "num_hard_negatives"):
    return most  # filled with other positives
  sampled = batch * (
    (num_sampled(settings) or sizes.labels_per_point) + setting(config, "num_hard_negatives")
  )
  chosen = setting(config, "num_random_negatives") + setting(config, "num_fresh_negatives")
  return min(math.ceil(sampled) + chosen, most)


def anchor_rows(config: ml_collections.ConfigDict, sizes: Sizes) -> int:
  """Returns the most anchors of a step: one for each of its points, on every side."""
  return sizes.num_sides * batch_rows(config, sizes)


def scored_at_once(config: ml_collections.ConfigDict, sizes: Sizes) -> int:
  """Returns the labels in one call of the loss: the pool, or all labels if fresh negatives are sought."""
  return sizes.num_labels if setting(config, "num_fresh_negatives") else pool_size(config, sizes)
