"""Bytes that an evaluation holds in each process beside the devices."""

from xmc_jax.plan.shapes import embedding_width, has_views, ranked_width, views_width
from xmc_jax.plan.sizes import Sizes

_NUMBER = 4  # bytes of a float32
_OF_A_TOKEN = 32  # of words and word pairs: some two a token, in two tables of 8 bytes each


def evaluation(config, sizes: Sizes) -> float:
  """Gathered label embeddings; for the hybrid ranking also those of training points, and words of texts."""
  if config.eval.scores != "hybrid":
    return _NUMBER * sizes.num_labels * ranked_width(config, sizes)
  width = views_width(config, sizes) + has_views(config) * ranked_width(config, sizes)
  tokens = sizes.num_points * sizes.tokens_per_point + sizes.num_labels * sizes.tokens_per_label
  vectors = sizes.num_labels * width + sizes.num_points * embedding_width(config, sizes)
  return _NUMBER * vectors + _OF_A_TOKEN * tokens
