"""Encodes token ids by one transformer, for weights of BERT and its kin.

Devlin et al. 2019 (BERT), Sanh et al. 2019 (DistilBERT), Wang et al. 2020 (MiniLM), Liu et al. 2019
(RoBERTa), Conneau et al. 2020 (XLM-R), Song et al. 2020 (MPNet), Warner et al. 2024 (ModernBERT). They differ
in sizes, token types and the first position, and MPNet adds a bias to attention scores. ModernBERT rotates
queries and keys by their positions, norms a sublayer's input instead of its sum, gates the feed-forward
layer, and has local layers. `hf_names.py` maps Hugging Face's parameter names to ours. Dropout acts where the
models were trained with it: on the embeddings after their norm, on attention weights after the softmax, on
each block's output, and on the attention's output, where only DistilBERT has none; ModernBERT has all.
"""

import contextlib
import dataclasses
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from xmc_jax.models import fused_attention
from xmc_jax.models.attention import Attention, relative_bias
from xmc_jax.models.layers import KERNEL_INIT, Dense, LayerNorm, dropout
from xmc_jax.models.unpadding import Places, find_places
from xmc_jax.types import Array

BLOCK_KEYS = 4  # dropout keys of a block
NO_KEYS = (None,) * BLOCK_KEYS


@dataclasses.dataclass(frozen=True)
class EncoderSpec:
  """Holds the sizes of a transformer encoder, which determine the shapes of its parameters."""

  kind: str  # `model_type` of Hugging Face's config, such as 'bert', which MiniLM has too
  vocab_size: int
  width: int  # D, the size of every hidden state
  num_layers: int
  num_heads: int  # divides `width`
  ffn_width: int  # of the feed-forward layer inside a block
  max_positions: int  # tokens, at most, that are read together; windows.py splits longer texts
  num_types: int = 0  # token types; 0 for DistilBERT and MPNet
  layer_norm_eps: float = 1e-12  # added to each variance
  first_position: int = 0  # row of the position table of a text's first token; RoBERTa leaves out two
  num_buckets: int = 0  # of distances between tokens that have a bias of their own; 0 for none
  rope_theta: float = 0.0  # base of the rotary angles in global layers; 0 for a position table instead
  local_rope_theta: float = 0.0  # the same in local layers
  local_attention: int = 0  # a local layer's window: a token attends to half as many on either side
  global_every: int = 1  # every n-th layer is global, from the first on; 1 for all
  pre_norm: bool = False  # norms precede attention (not the first) and feed-forward layers; one ends all
  gated: bool = False  # a second projection multiplies the inner units (GeGLU, Shazeer 2020)
  norm_bias: bool = True  # whether these layers have biases
  attention_bias: bool = True
  mlp_bias: bool = True


class Embeddings(nn.Module):
  """Embeds token ids `[...]` and positions as `[..., D]`: word + position + token type 0, normalised."""

  spec: EncoderSpec
  dtype: DTypeLike

  @nn.compact
  def __call__(self, ids: Array, positions: Array) -> Array:
    spec = self.spec
    word = self.param("word", KERNEL_INIT, (spec.vocab_size, spec.width))
    x = word[ids]
    if not spec.rope_theta:
      position = self.param("position", KERNEL_INIT, (spec.first_position + spec.max_positions, spec.width))
      x = x + position[spec.first_position + positions]
    if spec.num_types:
      x = x + self.param("type", KERNEL_INIT, (spec.num_types, spec.width))[0]
    return LayerNorm(spec.layer_norm_eps, self.dtype, spec.norm_bias, name="layer_norm")(x)


class Block(nn.Module):
  """Applies one transformer block: returns `[n, S, D]`, S = T or the number of `queries`.

  With `places`, `[P, D]` replaces `[n, T, D]`. `keys` are BLOCK_KEYS dropout keys, or Nones: for the
  attention's output (DistilBERT has no dropout there), the block's output, the attention weights, and the
  feed-forward layer's inner units (`inner_dropout`, 0 in these models). `index` counts an encoder's blocks.
  """

  spec: EncoderSpec
  dtype: DTypeLike
  implementation: fused_attention.Fused | None
  dropout: float
  attention_dropout: float = 0.0
  inner_dropout: float = 0.0
  index: int = 0

  @nn.compact
  def __call__(
    self,
    x: Array,
    mask: Array,
    keys: Array | tuple[None, ...],
    queries: Array | None = None,
    places: Places | None = None,
    lengths: Array | None = None,
    bias: Array | None = None,
    query_positions: Array | None = None,
  ) -> Array:
    spec = self.spec
    norm = lambda name: LayerNorm(spec.layer_norm_eps, self.dtype, spec.norm_bias, name=name)
    is_local = self.index % spec.global_every
    attention = Attention(
      spec.num_heads,
      self.dtype,
      self.implementation,
      self.attention_dropout,
      has_bias=spec.attention_bias,
      theta=spec.local_rope_theta if is_local else spec.rope_theta,
      window=spec.local_attention // 2 if is_local else None,
      name="attention",
    )
    same = lambda x: x
    before = after = norm("attention_layer_norm") if self.index or not spec.pre_norm else same
    before, after = (before, same) if spec.pre_norm else (same, after)
    residual, inputs = x if queries is None else queries, before(x)
    queries = inputs if queries is None else before(queries)
    attended = attention(queries, inputs, mask, places, keys[2], lengths, bias, query_positions)
    if spec.kind != "distilbert":
      attended = dropout(attended, self.dropout, keys[0])
    x = after(attended + residual)
    inputs = norm("intermediate_layer_norm")(x) if spec.pre_norm else x
    dense = partial(Dense, dtype=self.dtype, has_bias=spec.mlp_bias)
    hidden = dense(spec.ffn_width, gelu=True, name="intermediate")(inputs)
    if spec.gated:
      hidden = hidden * dense(spec.ffn_width, name="gate")(inputs)
    hidden = dropout(hidden, self.inner_dropout, keys[3])
    x = dropout(dense(spec.width, name="output")(hidden), self.dropout, keys[1]) + x
    return x if spec.pre_norm else norm("output_layer_norm")(x)


@partial(jax.jit, static_argnums=0)
def _run(block, variables, arguments):
  return block.apply(variables, *arguments)


def equal_blocks_traced_once() -> contextlib.AbstractContextManager:
  """Traces blocks as calls of a compiled function: one program for all of equal settings and shapes.

  For programs that are never run: a training step has its blocks inline.
  """

  def intercept(call, arguments, named, context):
    block = context.module
    if not isinstance(block, Block) or not block.path:
      return call(*arguments, **named)
    spec = block.spec
    index = block.index % spec.global_every + spec.global_every * (spec.pre_norm and block.index > 0)
    return _run(block.clone(parent=None, name=None, index=index), block.variables, arguments)

  return nn.intercept_methods(intercept)


class Encoder(nn.Module):
  """Encodes token ids as hidden states."""

  spec: EncoderSpec
  dtype: DTypeLike = jnp.float32  # of products and hidden states; parameters, norms, softmax: float32
  # From `choose_attention`; None is XLA's, which also computes where it is faster. A pass with dropped
  # attention weights uses `attend_with_dropout` instead.
  implementation: fused_attention.Fused | None = None
  dropout: float = 0.0  # rate on hidden states
  attention_dropout: float = 0.0  # rate on attention weights
  num_frozen_layers: int = 0  # n > 0 cuts the gradient below block n, embeddings included
  remat: bool = False  # recompute each block's activations in the backward pass
  # Computes the last block only for each row's first real token, the only one that CLS pooling reads.
  first_only: bool = False

  @nn.compact
  def __call__(
    self,
    ids: Array,
    mask: Array,
    key: Array | None = None,
    num_places: int | None = None,
    padded_last: bool = False,
  ) -> Array:
    """Encodes `ids` `[n, T]` int32 under `mask` `[n, T]` bool (True = real), any mask; T <= max_positions.

    `padded_last` promises that padding follows the real tokens in every row; it saves fused attention a bias.

    With `num_places`, at least the number of real tokens, all layers except attention run on the real tokens
    without padding (unpadding.py). The output is the same at real tokens, and 0 at others.

    Returns:
      `[n, T, D]` in `dtype`, or `[n, 1, D]` with `first_only`. Rows without a token are finite.
    """
    spec = self.spec
    num_keys = spec.num_layers + 1
    keys = [NO_KEYS] * num_keys if key is None else jax.random.split(key, (num_keys, BLOCK_KEYS))
    places = find_places(mask, num_places) if num_places else None
    first = jnp.argmax(mask, axis=1)[:, None, None]
    # A softmax over no key at all is NaN in some kernels: an empty row attends to its first position.
    mask = mask | (~mask.any(axis=1, keepdims=True) & (jnp.arange(mask.shape[1]) == 0))
    lengths = mask.sum(axis=1, dtype=jnp.int32) if padded_last else None
    positions: Array = jnp.arange(mask.shape[1])
    if places:
      positions = places.cells % mask.shape[1]
      ids = jnp.ravel(ids).at[places.cells].get(mode="clip")  # no token attends to unused places
    x = Embeddings(spec, self.dtype, name="embeddings")(ids, positions)
    x = dropout(x, self.dropout, keys[-1][0])
    table = None
    if spec.num_buckets:
      table = self.param("relative_bias", KERNEL_INIT, (spec.num_buckets, spec.num_heads))
    bias = relative_bias(table, jnp.arange(mask.shape[1])[None], mask.shape[1])
    make_block = partial(nn.remat(Block) if self.remat else Block, spec, self.dtype, self.implementation)
    for i in range(spec.num_layers):
      if 0 < i == self.num_frozen_layers:
        x = jax.lax.stop_gradient(x)
      block = make_block(self.dropout, self.attention_dropout, index=i, name=f"layer_{i}")
      queries = query_positions = None
      if self.first_only and i == spec.num_layers - 1:
        queries = jnp.take_along_axis(places.unpack(x) if places else x, first, axis=1)
        query_positions = first[..., 0]
        bias = relative_bias(table, query_positions, mask.shape[1])
      x = block(x, mask, keys[i], queries, places, lengths, bias, query_positions)
    if spec.pre_norm:
      x = LayerNorm(spec.layer_norm_eps, self.dtype, spec.norm_bias, name="final_layer_norm")(x)
    x = places.unpack(x) if places and x.ndim == 2 else x
    return jax.lax.stop_gradient(x) if 0 < spec.num_layers == self.num_frozen_layers else x
