"""Bytes that an evaluation holds in each process beside the devices."""

from xmc_jax.plan.shapes import num_views, opens_sources, papers_width, ranked_width, ranks_twice
from xmc_jax.plan.sizes import Sizes

_NUMBER = 4  # bytes of a float32
_OF_A_TOKEN = 32  # of words and word pairs: some two a token, in two tables of 8 bytes each
_COPIES_OF_POINTS = 2  # while they are opened: as they are, and of unit length


def evaluation(config, sizes: Sizes) -> float:
  """Gathered label embeddings; where training points rank, too, also these, and the words of all texts.

  Words are taken from tokens, of which `data.max_length` is the most: of longer texts there are more.
  """
  width = ranked_width(config, sizes)
  if not opens_sources(config):
    return _NUMBER * sizes.num_labels * papers_width(config, sizes)
  # Each view has the columns of all.
  of_label = num_views(config, sizes) * width + ranks_twice(config, sizes) * papers_width(config, sizes)
  tokens = sizes.num_points * sizes.tokens_per_point + sizes.num_labels * sizes.tokens_per_label
  vectors = sizes.num_labels * of_label + _COPIES_OF_POINTS * sizes.num_points * width
  return _NUMBER * vectors + _OF_A_TOKEN * tokens
