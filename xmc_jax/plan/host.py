"""Estimates the bytes of host memory that embeddings take."""

import ml_collections

from xmc_jax.plan.shapes import (
  num_views,
  opens_sources,
  papers_width,
  ranked_width,
  remembers_points,
  setting,
)
from xmc_jax.plan.sizes import Sizes

_BYTES_PER_NUMBER = 4  # bytes of a float32
_OF_A_TOKEN = 32  # for words and word pairs: about two per token, in two tables of 8 bytes each
_COPIES_OF_POINTS = 2  # while the index is built: the vectors as given, and scaled to length 1


def split_over_processes(config: ml_collections.ConfigDict, sizes: Sizes) -> float:
  """Returns the bytes of what refreshes and rankings by the paper's own scores hold, over all processes.

  These are embeddings of the labels, and of the points if there are refreshes that compare them.
  """
  spec = sizes.batch
  compares_points = (
    spec.num_hard_negatives
    or spec.batch_is_cluster
    or spec.cluster_size > 1
    or setting(config, "centroids") not in (0, "none")
    or setting(config, "label_clustering") == "balanced_centroids"
    or (spec.graph_sides and setting(config, "graph_pruning"))
  )
  points = sizes.num_points * ranked_width(config, sizes) if compares_points else 0
  return _BYTES_PER_NUMBER * (sizes.num_labels * papers_width(config, sizes) + points)


def in_every_process(config: ml_collections.ConfigDict, sizes: Sizes) -> float:
  """Returns the bytes of what an evaluation by training points holds in each process; 0 if it does not.

  Words are estimated by tokens, at most `data.max_length` per text; longer texts have more words.
  """
  width, by_sources = ranked_width(config, sizes), opens_sources(config)
  by_memory = remembers_points(sizes) and config.eval.scores in ("fused", "hybrid")
  if not by_sources and not by_memory:
    return 0.0
  # The vectors of each view have the columns of all views.
  of_label = by_sources * num_views(config, sizes) * width + by_memory * papers_width(config, sizes)
  tokens = sizes.num_points * sizes.tokens_per_point + sizes.num_labels * sizes.tokens_per_label
  vectors = sizes.num_labels * of_label + _COPIES_OF_POINTS * sizes.num_points * width
  return _BYTES_PER_NUMBER * vectors + by_sources * _OF_A_TOKEN * tokens
