"""Encodes a text as a bag of token embeddings, the mean of a table's rows: a cheap, strong baseline."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from xmc_jax.models.heads import mean_pool
from xmc_jax.models.layers import KERNEL_INIT
from xmc_jax.types import Array


@dataclasses.dataclass(frozen=True)
class BagSpec:
  """Holds the sizes of a bag of embeddings: `vocab_size` rows of `width`."""

  vocab_size: int
  width: int
  special_ids: tuple[int, ...] = ()  # left out of the mean ([CLS], [SEP], ...) unless a text has nothing else


class Bag(nn.Module):
  """Computes the mean of the embeddings of a text's tokens."""

  spec: BagSpec
  dropout: float = 0.0  # share of the tokens left out of the mean while training

  @nn.compact
  def __call__(self, ids: Array, mask: Array, key: Array | None = None) -> Array:
    """Maps `ids` `[n, T]` int32, `mask` `[n, T]` bool to `[n, D]` float32; zero for a row without tokens."""
    table = self.param("word", KERNEL_INIT, (self.spec.vocab_size, self.spec.width))
    if self.spec.special_ids:
      ordinary = mask & ~jnp.isin(ids, jnp.array(self.spec.special_ids))
      mask = jnp.where(ordinary.any(axis=1, keepdims=True), ordinary, mask)
    if key is not None and self.dropout:
      mask = mask & jax.random.bernoulli(key, 1 - self.dropout, mask.shape)
    return mean_pool(table[ids], mask)
