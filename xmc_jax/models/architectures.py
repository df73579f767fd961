"""Lists sizes of known encoders, to plan a run or to start from scratch without their config.json."""

from xmc_jax.models.bag import BagSpec
from xmc_jax.models.encoder import EncoderSpec
from xmc_jax.models.gru import GruSpec

Spec = EncoderSpec | BagSpec | GruSpec

KNOWN = {
  "distilbert-base-uncased": EncoderSpec("distilbert", 30522, 768, 6, 12, 3072, 512),
  "msmarco-distilbert-base-v4": EncoderSpec("distilbert", 30522, 768, 6, 12, 3072, 512),
  "msmarco-distilbert-cos-v5": EncoderSpec("distilbert", 30522, 768, 6, 12, 3072, 512),
  "bert-base-uncased": EncoderSpec("bert", 30522, 768, 12, 12, 3072, 512, 2),
  "bert-large-uncased": EncoderSpec("bert", 30522, 1024, 24, 16, 4096, 512, 2),
  "paraphrase-MiniLM-L3-v2": EncoderSpec("bert", 30522, 384, 3, 12, 1536, 512, 2),
  "all-MiniLM-L6-v2": EncoderSpec("bert", 30522, 384, 6, 12, 1536, 512, 2),
  "all-MiniLM-L12-v2": EncoderSpec("bert", 30522, 384, 12, 12, 1536, 512, 2),
}
"""Holds the sizes of usual encoders by hub id, from their config.json. All have BERT's uncased vocabulary."""
_OWNERS = ("", "distilbert", "google-bert", "sentence-transformers")


def known_spec(name: str) -> EncoderSpec | None:
  """Returns the EncoderSpec of a hub id, with or without its owner; None for any other name.

  Example:
    >>> known_spec("google-bert/bert-base-uncased").num_layers
    12
  """
  owner, _, short = name.rpartition("/")
  return KNOWN.get(short) if owner in _OWNERS else None
