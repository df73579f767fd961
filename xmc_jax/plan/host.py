"""Estimates the bytes of host memory that an evaluation takes in each process."""

import ml_collections

from xmc_jax.plan.shapes import num_views, opens_sources, papers_width, ranked_width, ranks_twice
from xmc_jax.plan.sizes import Sizes

_BYTES_PER_NUMBER = 4  # bytes of a float32
_OF_A_TOKEN = 32  # for words and word pairs: about two per token, in two tables of 8 bytes each
_COPIES_OF_POINTS = 2  # while the index is built: the vectors as given, and scaled to length 1


def evaluation(config: ml_collections.ConfigDict, sizes: Sizes) -> float:
  """Returns the bytes of the label embeddings; if training points rank too, also of these and of all words.

  Words are estimated by tokens, at most `data.max_length` per text; longer texts have more words.
  """
  width = ranked_width(config, sizes)
  if not opens_sources(config):
    return _BYTES_PER_NUMBER * sizes.num_labels * papers_width(config, sizes)
  # The vectors of each view have the columns of all views.
  of_label = num_views(config, sizes) * width + ranks_twice(config, sizes) * papers_width(config, sizes)
  tokens = sizes.num_points * sizes.tokens_per_point + sizes.num_labels * sizes.tokens_per_label
  vectors = sizes.num_labels * of_label + _COPIES_OF_POINTS * sizes.num_points * width
  return _BYTES_PER_NUMBER * vectors + _OF_A_TOKEN * tokens
