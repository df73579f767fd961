"""How many points and labels stand in a step, how wide they are, and how many numbers are trained."""

import math

from xmc_jax.batching.builder import epoch_shape
from xmc_jax.batching.positives import num_drawn
from xmc_jax.config import SOURCES
from xmc_jax.models import BagSpec, EncoderSpec, GruSpec
from xmc_jax.plan.sizes import Sizes


def setting(config, name: str):
  """Returns a setting of the method; 0 where the method has none of that name."""
  return config.method.get(name, 0)


def parameters(config, sizes: Sizes) -> int:
  """Numbers in the encoder, its heads, and a prototype network."""
  spec = sizes.encoder
  head = (spec.width + 1) * (config.encoder.projection_dim + classifier_dim(config, sizes))
  if network := prototype_network(config, sizes):
    head += _of_block(network)
  if isinstance(spec, BagSpec):
    return spec.vocab_size * spec.width + head
  if isinstance(spec, GruSpec):
    half, columns = spec.width // 2, spec.embedding_width
    return spec.vocab_size * columns + 2 * (3 * half * (columns + 1) + (3 * half + 1) * half) + head
  embeddings = (spec.vocab_size + spec.max_positions + spec.num_types + 2) * spec.width
  return embeddings + spec.num_layers * _of_block(spec) + head


def _of_block(spec: EncoderSpec) -> int:
  width, inner = spec.width, spec.ffn_width
  return 4 * (width + 1) * width + (width + 1) * inner + (inner + 1) * width + 4 * width


def embedding_width(config, sizes: Sizes) -> int:
  """D, of what is scored by texts."""
  return config.encoder.projection_dim or sizes.encoder.width


def ranked_width(config, sizes: Sizes) -> int:
  """Of what labels are ranked by: D, and what a second head has beside it."""
  return embedding_width(config, sizes) + classifier_dim(config, sizes)


def num_views(config, sizes: Sizes) -> int:
  """Kinds of label vectors: of texts, and of classifiers where there are any."""
  return 1 + (bool(classifier_dim(config, sizes)) or not trains_encoder(sizes))


def views_width(config, sizes: Sizes) -> int:
  """Columns of a label in all the ways that it can be ranked by, one beside the other."""
  return ranked_width(config, sizes) + embedding_width(config, sizes) * (not trains_encoder(sizes))


def papers_width(config, sizes: Sizes) -> int:
  """Columns of a label in the ranking that is the paper's own: the sum of its views, or for a tree each."""
  is_tree = num_views(config, sizes) > 1 and config.eval.fusion_rows > 0
  return views_width(config, sizes) if is_tree else ranked_width(config, sizes)


def opens_sources(config) -> bool:
  """Whether an evaluation ranks by training points and words, too."""
  return config.eval.scores == "hybrid" or config.eval.scores in SOURCES


def ranks_twice(config, sizes: Sizes) -> bool:
  """Whether the paper's own ranking stands beside the hybrid, by other vectors."""
  return config.eval.scores == "hybrid" and (num_views(config, sizes) > 1 or remembers_points(sizes))


def batch_is_cluster(sizes: Sizes) -> bool:
  """Returns whether a batch is one cluster of the points."""
  return sizes.batch.batch_is_cluster


def picks_some(config, sizes: Sizes) -> bool:
  """Returns whether all true labels in a cluster's pool count, whoever drew them (UniDEC, DEPSL)."""
  return batch_is_cluster(sizes) and not scores_whole(config)


def classifier_dim(config, sizes: Sizes) -> int:
  """D', of a second head and of the classifiers that are trained with the encoder; 0 where there are none."""
  return setting(config, "classifier_dim") if setting(config, "encoder_weight") < 1 else 0


def has_prototypes(config) -> bool:
  """Whether labels are ranked by more than their texts, through a network (PRIME)."""
  return setting(config, "prototype_width") > 0


def prototype_network(config, sizes: Sizes) -> EncoderSpec | None:
  """The block that makes prototypes of labels; None where there are none."""
  if not has_prototypes(config):
    return None
  return EncoderSpec("bert", 0, embedding_width(config, sizes), 1, 1, setting(config, "prototype_width"), 0)


def vectors_of_label(config) -> int:
  """What a prototype is made of: the text, and where there are some a centroid and a free vector."""
  clustered = any(
    setting(config, name) for name in ("num_label_clusters", "num_head_labels", "head_label_points")
  )
  return 1 + (config.method.get("centroids", "none") != "none") + clustered


def remembers_points(sizes: Sizes) -> bool:
  """Returns whether training points are keys beside the labels: a batch scores its points, too (RAE-XMC)."""
  return sizes.batch.shared


def trains_encoder(sizes: Sizes) -> bool:
  """Not where classifiers are trained on a frozen one."""
  return not sizes.batch.frozen


def row_sparse(config, sizes: Sizes) -> int:
  """Numbers in tables of which a step touches some rows, on one device."""
  rows = setting(config, "num_label_clusters") + setting(config, "num_head_labels")
  width = embedding_width(config, sizes)
  if not trains_encoder(sizes):
    rows = sizes.num_labels
  elif dim := classifier_dim(config, sizes):
    rows, width = sizes.num_labels, dim
  return math.ceil(rows / (config.mesh.data * config.mesh.label)) * width


def scores_whole(config) -> bool:
  """Whether a row's scores are in memory all at once, on every device of 'label'."""
  return config.method.loss in ("margin", "dynamic_margin")


def epoch(config, sizes: Sizes) -> tuple[int, int]:
  """`(steps of an epoch, B over all devices)`; where the number of points is not known there are no steps."""
  size = config.train.batch_size
  if not sizes.num_points:
    return 0, size
  return epoch_shape(sizes.num_points, size, config.mesh.data, batch_is_cluster(sizes))


def batch_rows(config, sizes: Sizes) -> int:
  """B, over all devices."""
  return epoch(config, sizes)[1]


def pool_size(config, sizes: Sizes) -> int:
  """S: labels that a step's queries are scored against."""
  settings, batch = config.method, batch_rows(config, sizes)
  if settings.labels not in ("in_batch", "in_batch_table"):
    return sizes.num_labels
  most = min(setting(config, "pool_size") or sizes.num_labels, sizes.num_labels)
  if setting(config, "pool_size") and picks_some(config, sizes) and not setting(config, "num_hard_negatives"):
    return most  # filled with other positives
  drawn = batch * ((num_drawn(settings) or sizes.labels_per_point) + setting(config, "num_hard_negatives"))
  chosen = setting(config, "num_random_negatives") + setting(config, "num_fresh_negatives")
  return min(math.ceil(drawn) + chosen, most)


def anchor_rows(config, sizes: Sizes) -> int:
  """Anchors of a step, at most: one for each of its points, on every side."""
  return sizes.num_sides * batch_rows(config, sizes)


def scored_at_once(config, sizes: Sizes) -> int:
  """Labels in one call of the loss: the pool, or all of them where fresh negatives are looked for."""
  return sizes.num_labels if setting(config, "num_fresh_negatives") else pool_size(config, sizes)
