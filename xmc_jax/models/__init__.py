"""Builds text encoders: transformers with pretrained weights, GRUs, bags of embeddings, and their heads."""

from xmc_jax.models.architectures import KNOWN, known_spec
from xmc_jax.models.bag import Bag, BagSpec
from xmc_jax.models.embedder import (
  PARAMETERS,
  Embedder,
  build,
  frozen_paths,
  packs_tokens,
  with_rounded_kernels,
)
from xmc_jax.models.encoder import Encoder, EncoderSpec
from xmc_jax.models.fused_attention import choose_attention
from xmc_jax.models.gru import Gru, GruSpec
from xmc_jax.models.hardware import choose_dtype, resolve_dtype
from xmc_jax.models.heads import Head, mean_pool, normalize
from xmc_jax.models.loading import load_encoder
from xmc_jax.models.locate import source_key, tokenizer_file
from xmc_jax.models.own_vocabulary import starts_from_table, write_table
from xmc_jax.models.pretrained import copy_description, load_pretrained, modules_of, save_pretrained
from xmc_jax.models.prototype import PrototypeNetwork
from xmc_jax.models.sentence_modules import head_settings

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
  "head_settings",
  "known_spec",
  "load_encoder",
  "load_pretrained",
  "mean_pool",
  "modules_of",
  "normalize",
  "packs_tokens",
  "resolve_dtype",
  "save_pretrained",
  "source_key",
  "starts_from_table",
  "tokenizer_file",
  "with_rounded_kernels",
  "write_table",
]
