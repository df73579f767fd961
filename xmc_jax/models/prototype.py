"""Implements PRIME's label prototype network (Dahiya et al., NAACL 2025, section 3.2 and appendix H)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from xmc_jax.models.encoder import BLOCK_KEYS, NO_KEYS, Block, EncoderSpec
from xmc_jax.types import Array


class PrototypeNetwork(nn.Module):
  """Combines S vectors of each label `[n, S, D]` into prototypes `[n, D]` float32, not scaled to length 1.

  The S vectors are those of a label's text, its centroid and its cluster, or some of them. One post-norm
  block with one head, which all labels share, mixes them; their mean is the prototype.

  Attributes:
    ffn_width: of the block's feed-forward layer.
    dropout: rate at the four sites of PyTorch's `TransformerEncoderLayer`, which the released code uses:
      attention weights, attention's output, the feed-forward layer's inner units and its output.
    dtype: of products; parameters, layer norms and softmax are float32.
  """

  ffn_width: int = 1024
  dropout: float = 0.1
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, vectors: Array, key: Array | None = None) -> Array:
    spec = EncoderSpec(
      kind="bert",
      vocab_size=0,
      width=vectors.shape[-1],
      num_layers=1,
      num_heads=1,
      ffn_width=self.ffn_width,
      max_positions=0,
      layer_norm_eps=1e-5,
    )
    keys = NO_KEYS if key is None else jax.random.split(key, BLOCK_KEYS)
    block = Block(spec, self.dtype, None, self.dropout, self.dropout, self.dropout, name="layer")
    mixed = block(vectors.astype(self.dtype), jnp.ones(vectors.shape[:2], bool), keys)
    return mixed.astype(jnp.float32).mean(axis=1)
