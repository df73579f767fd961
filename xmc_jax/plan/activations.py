"""Estimates the bytes per token that an encoder keeps for its backward pass, as measured with XLA.

Fitted to `compile().memory_analysis()` of the encoder's value and gradient, linear in the width D, the inner
width F and heads x tokens H T; docs/planning.md has the residuals.
"""

from typing import NamedTuple

import ml_collections

from xmc_jax.models import BagSpec, EncoderSpec, GruSpec


class Rate(NamedTuple):
  """Holds bytes per token: `width` per unit of D, `inner` per unit of F, `attention` per unit of H T."""

  width: float
  inner: float = 0.0
  attention: float = 0.0

  def of(self, spec: EncoderSpec, tokens: float) -> float:
    inner = spec.ffn_width * (1 + spec.gated)
    return self.width * spec.width + self.inner * inner + self.attention * spec.num_heads * tokens


class Rates(NamedTuple):
  """Holds the rates of one compiler.

  Attributes:
    layer: kept for each block from forward to backward pass.
    work: in addition, while the backward pass runs.
    first: kept for the last block under CLS pooling, which has one query per text; `work` is then 0.
    rematerialised: kept for each block under `encoder.remat`; None if the compiler undoes it.
  """

  layer: Rate
  work: Rate
  first: Rate
  rematerialised: Rate | None


# Of accelerators: fitted to XLA for an H200, used for TPUs too.
_RATES = {
  "float32": Rates(Rate(32, 8, 8), Rate(12), Rate(21), Rate(4)),
  "bfloat16": Rates(Rate(16, 4, 6), Rate(8, 1), Rate(14), Rate(2)),
}
_RATES_OF_CPU = {
  "float32": Rates(Rate(56, 7.5, 15), Rate(20, 2), Rate(41), None),
  "bfloat16": Rates(Rate(40, 11, 10), Rate(20, 2), Rate(39), None),
}
_NARROW_HEADS = Rate(24)  # extra for each block, in bfloat16 on a TPU with heads narrower than 64
_OVERLAP = 0.75  # extra share of a block with several GPUs: XLA then schedules for speed, not for memory
# GRU, measured on a CPU: `Kept.waiting` and `.working` per unit of D, without and with `encoder.remat`.
_OF_GRU = {"float32": ((38, 36), (16, 24)), "bfloat16": ((34, 32), (8, 26))}
_OF_GRU_TABLE, _OF_GRU_TEXT = 4, 23  # waiting per column of the table; working per unit of D and text
_OF_BAG = {"gpu": (0, 0), "tpu": (4, 12), "cpu": (4, 12)}  # per unit of D: bytes per token, and per text


class _OfDropout(NamedTuple):
  """Holds what dropout keeps from forward to backward pass: bytes per token.

  Attributes:
    site: per unit of D (or F) at a site inside a block.
    embeddings: per unit of D on the embeddings.
    weights: per unit of H T.
  """

  site: float
  embeddings: float
  weights: float


# An accelerator keeps a byte for each number; XLA for a CPU keeps random bits, or the numbers, too.
_OF_DROPOUT = {
  "cpu": _OfDropout(8.0, 4.0, 4.0),
  "gpu": _OfDropout(1.0, 1.0, 1.0),
  "tpu": _OfDropout(1.0, 1.0, 1.0),
}


class Dropped(NamedTuple):
  """Describes where a block applies dropout in training.

  Attributes:
    sites: number of places on hidden states of width D.
    inner: whether there is dropout inside the feed-forward layer, at width F.
    weights: whether there is dropout on attention weights.
    embeddings: whether there is dropout before the first block.
  """

  sites: int = 0
  inner: bool = False
  weights: bool = False
  embeddings: bool = False

  def of_block(self, kind: str) -> Rate:
    """Returns what a block keeps in addition, on a kind of chip."""
    rates = _OF_DROPOUT[kind]
    return Rate(rates.site * self.sites, rates.site * self.inner, rates.weights * self.weights)


def dropped_by_encoder(settings: ml_collections.ConfigDict, spec: EncoderSpec) -> Dropped:
  """Returns the dropout of `config.encoder`; DistilBERT's blocks have one site on hidden states, not two."""
  hidden = settings.dropout > 0
  sites = 1 if spec.kind == "distilbert" else 2
  return Dropped(
    sites=sites * hidden,
    weights=settings.attention_dropout > 0,
    embeddings=hidden and not settings.num_frozen_layers,
  )


def dropped_by_network(settings: ml_collections.ConfigDict) -> Dropped:
  """Returns the dropout of `config.method`'s prototype network: all four sites of its layer."""
  drops = settings.prototype_dropout > 0
  return Dropped(sites=2 * drops, inner=drops, weights=drops)


class Kept(NamedTuple):
  """Holds bytes per token: `waiting` until the backward pass, and `working` in addition while it runs."""

  waiting: float
  working: float


def per_token(
  config: ml_collections.ConfigDict,
  spec: EncoderSpec | BagSpec | GruSpec,
  tokens: float,
  kind: str,
  dropped: Dropped | None = None,
) -> Kept:
  """Returns the bytes that one token takes in a text of `tokens` tokens.

  Args:
    config: only the encoder's settings and the mesh matter.
    spec: the encoder's sizes.
    tokens: T.
    kind: kind of the chip.
    dropped: dropout of the blocks; None is that of `config.encoder`.
  """
  if isinstance(spec, BagSpec):
    of_token, of_text = _OF_BAG[kind]
    return Kept(0.0, (of_token + of_text / tokens) * spec.width)
  settings, num_devices = config.encoder, config.mesh.data * config.mesh.label
  dtype = "float32" if settings.dtype == "float32" else "bfloat16"
  if isinstance(spec, GruSpec):
    waiting, working = _OF_GRU[dtype][settings.remat]
    return Kept(
      _OF_GRU_TABLE * spec.embedding_width + waiting * spec.width,
      (working + _OF_GRU_TEXT / tokens) * spec.width,
    )
  rates = (_RATES_OF_CPU if kind == "cpu" else _RATES)[dtype]
  first_only = settings.pooling == "cls"
  num_layers = max(0, spec.num_layers - first_only - settings.num_frozen_layers)
  dropped = dropped_by_encoder(settings, spec) if dropped is None else dropped
  layer = rates.layer.of(spec, tokens) + dropped.of_block(kind).of(spec, tokens)
  embeddings = _OF_DROPOUT[kind].embeddings * spec.width * dropped.embeddings
  if kind == "tpu" and dtype == "bfloat16" and spec.width // spec.num_heads < 64:
    layer += _NARROW_HEADS.of(spec, tokens)
  first, work = (rates.first.of(spec, tokens), 0.0) if first_only else (0.0, rates.work.of(spec, tokens))
  if kind == "gpu" and num_devices > 1:
    work += _OVERLAP * layer
  if settings.remat and rates.rematerialised:
    return Kept(embeddings + num_layers * rates.rematerialised.of(spec, tokens) + first, work + layer)
  return Kept(embeddings + num_layers * layer + first, work)
