"""Builds text encoders: transformers with pretrained weights, GRUs, bags of embeddings, and their heads."""

from xmc_jax.models.architectures import KNOWN, known_spec
from xmc_jax.models.bag import Bag, BagSpec
from xmc_jax.models.embedder import PARAMETERS, Embedder, build, frozen_paths, packs_tokens
from xmc_jax.models.encoder import Encoder, EncoderSpec
from xmc_jax.models.fused_attention import choose_attention
from xmc_jax.models.gru import Gru, GruSpec
from xmc_jax.models.hardware import choose_dtype, resolve_dtype
from xmc_jax.models.heads import Head, mean_pool, normalize
from xmc_jax.models.loading import load_encoder
from xmc_jax.models.locate import copy_description, source_key, tokenizer_file
from xmc_jax.models.pretrained import load_pretrained, save_pretrained
from xmc_jax.models.prototype import PrototypeNetwork
from xmc_jax.models.rounded_kernels import with_rounded_kernels

__all__ = [
  "KNOWN",
  "PARAMETERS",
  "Bag",
  "BagSpec",
  "Embedder",
  "Encoder",
  "EncoderSpec",
  "Gru",
  "GruSpec",
  "Head",
  "PrototypeNetwork",
  "build",
  "choose_attention",
  "choose_dtype",
  "copy_description",
  "frozen_paths",
  "known_spec",
  "load_encoder",
  "load_pretrained",
  "mean_pool",
  "normalize",
  "packs_tokens",
  "resolve_dtype",
  "save_pretrained",
  "source_key",
  "tokenizer_file",
  "with_rounded_kernels",
]
