"""PRIME's label prototype network (Dahiya et al., NAACL 2025, section 3.2 and appendix H)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from xmc_jax.models.layers import Dense, LayerNorm, dropout, gelu

_LAYER_NORM_EPS = 1e-5


class PrototypeNetwork(nn.Module):
  """Makes prototypes `[n, D]` float32, not scaled to any length, of what is known of labels `[n, S, D]`.

  The S vectors are those of a label's text, its centroid and its cluster, or some of them. One post-norm
  transformer layer with one head, which all labels share, then the mean.

  Attributes:
    ffn_width: of the layer's feed-forward part.
    dropout: rate at the four sites where a post-norm layer has it; acts only with a key.
    dtype: of products; parameters, layer norms and softmax are float32.
  """

  ffn_width: int = 1024
  dropout: float = 0.1
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, vectors, key=None):
    layer = _Layer(self.ffn_width, self.dropout, self.dtype, name="layer")
    return layer(vectors.astype(self.dtype), key).astype(jnp.float32).mean(axis=1)


class _Layer(nn.Module):
  """A post-norm transformer layer `[n, S, D] -> [n, S, D]` of one head, with PyTorch's four dropouts.

  They are on attention weights, on attention's output, between the two matrices of the feed-forward part, and
  on its output. `encoder.Block` is DistilBERT's and BERT's layer, which has none between the matrices.
  """

  ffn_width: int
  dropout: float
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, x, key):
    width = x.shape[-1]
    of_weights, of_attended, of_hidden, of_output = [None] * 4 if key is None else jax.random.split(key, 4)
    attended = _Attention(self.dropout, self.dtype, name="attention")(x, of_weights)
    attended = dropout(attended, self.dropout, of_attended)
    x = LayerNorm(_LAYER_NORM_EPS, self.dtype, name="attention_layer_norm")(attended + x)
    hidden = gelu(Dense(self.ffn_width, self.dtype, name="intermediate")(x))
    hidden = dropout(hidden, self.dropout, of_hidden)
    output = dropout(Dense(width, self.dtype, name="output")(hidden), self.dropout, of_output)
    return LayerNorm(_LAYER_NORM_EPS, self.dtype, name="output_layer_norm")(output + x)


class _Attention(nn.Module):
  """Attention of one head over `x` `[n, S, D]`, all S looking at all S; dropout on its weights."""

  dropout: float
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, x, key):
    width = x.shape[-1]
    query, keys, values = (Dense(width, self.dtype, name=name)(x) for name in ("query", "key", "value"))
    logits = jnp.einsum("nsd,ntd->nst", query, keys, preferred_element_type=jnp.float32) * width**-0.5
    weights = dropout(jax.nn.softmax(logits, axis=-1), self.dropout, key).astype(self.dtype)
    mixed = jnp.einsum("nst,ntd->nsd", weights, values, preferred_element_type=jnp.float32)
    return Dense(width, self.dtype, name="output")(mixed.astype(self.dtype))
