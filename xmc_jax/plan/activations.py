"""Bytes that an encoder keeps for its backward pass, a token: what XLA's compilers were seen to take.

Fitted to `compile().memory_analysis()` of the encoder's value and gradient, linear in the width D, the inner
width F and heads x tokens H T; docs/planning.md has the residuals.
"""

from typing import NamedTuple

from xmc_jax.models import BagSpec, EncoderSpec, GruSpec


class Rate(NamedTuple):
  """Bytes a token: `width` for each of D, `inner` for each of F, `attention` for each of H T."""

  width: float
  inner: float = 0.0
  attention: float = 0.0

  def of(self, spec: EncoderSpec, tokens: float) -> float:
    return self.width * spec.width + self.inner * spec.ffn_width + self.attention * spec.num_heads * tokens


class Rates(NamedTuple):
  """What one compiler takes.

  Attributes:
    layer: kept of each block from forward to backward pass.
    work: beside that, while the backward pass runs.
    first: kept of the last block under CLS pooling, where it has one query a text; there is no `work` then.
    rematerialised: kept of each block under `encoder.remat`; None where the compiler undoes it.
  """

  layer: Rate
  work: Rate
  first: Rate
  rematerialised: Rate | None


# bfloat16 and accelerators were fitted before `layers.gelu` kept its input alone: they say too much.
_RATES = {
  "float32": Rates(Rate(32, 12, 8), Rate(8), Rate(21), Rate(4)),
  "bfloat16": Rates(Rate(16, 8, 6), Rate(8), Rate(13), Rate(2)),
}
_RATES_OF_CPU = {
  "float32": Rates(Rate(56, 7.5, 15), Rate(20, 2), Rate(41), None),
  "bfloat16": Rates(Rate(40, 11, 10), Rate(20, 2), Rate(39), None),
}
_NARROW_HEADS = Rate(24)  # of each block more, in bfloat16 on a TPU with heads of less than 64
_OVERLAP = 0.75  # of a block more, while several GPUs work: XLA then schedules for speed, not for memory
# Of a GRU, seen on a CPU: waiting and working for each of D, without and with `encoder.remat`.
_OF_GRU = {"float32": ((38, 36), (16, 24)), "bfloat16": ((34, 32), (8, 26))}
_OF_GRU_TABLE, _OF_GRU_TEXT = 4, 23  # waiting for each of the table's columns; working for each of D, a text
_OF_BAG = {"gpu": (0, 0), "tpu": (4, 12), "cpu": (4, 12)}  # for each of D: a token, a text


# Of dropout, kept from forward to backward pass, seen on a CPU, taken for all: for each of D (or F) and site
# inside a block; for each of D on the embeddings; for each of H T.
_OF_SITE, _OF_EMBEDDINGS, _OF_WEIGHTS = 8.0, 4.0, 4.0


class Dropped(NamedTuple):
  """Where a block drops while it trains.

  Attributes:
    sites: on hidden states, of D each.
    inner: whether on the feed-forward layer's inner ones, of F.
    weights: whether on attention weights.
    embeddings: whether before the first block.
  """

  sites: int = 0
  inner: bool = False
  weights: bool = False
  embeddings: bool = False

  @property
  def of_block(self) -> Rate:
    return Rate(_OF_SITE * self.sites, _OF_SITE * self.inner, _OF_WEIGHTS * self.weights)


def dropped_by_encoder(settings, spec: EncoderSpec) -> Dropped:
  """Of `config.encoder`: DistilBERT's blocks have one site on hidden states, others have two."""
  hidden = settings.dropout > 0
  sites = 1 if spec.kind == "distilbert" else 2
  return Dropped(
    sites=sites * hidden,
    weights=settings.attention_dropout > 0,
    embeddings=hidden and not settings.num_frozen_layers,
  )


def dropped_by_network(settings) -> Dropped:
  """Of `config.method`'s prototype network: all four sites of its layer."""
  drops = settings.prototype_dropout > 0
  return Dropped(sites=2 * drops, inner=drops, weights=drops)


class Kept(NamedTuple):
  """Bytes a token: kept until the backward pass, and more of them while that runs."""

  waiting: float
  working: float


def per_token(
  config, spec: EncoderSpec | BagSpec | GruSpec, tokens: float, kind: str, dropped: Dropped | None = None
) -> Kept:
  """What one token of a text of `tokens` takes.

  Args:
    config: its encoder's settings and its mesh count.
    spec: the encoder's sizes.
    tokens: T.
    kind: of the chip.
    dropped: by its blocks; None is what `config.encoder` says.
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
  layer = rates.layer.of(spec, tokens) + dropped.of_block.of(spec, tokens)
  embeddings = _OF_EMBEDDINGS * spec.width * dropped.embeddings
  if kind == "tpu" and dtype == "bfloat16" and spec.width // spec.num_heads < 64:
    layer += _NARROW_HEADS.of(spec, tokens)
  first, work = (rates.first.of(spec, tokens), 0.0) if first_only else (0.0, rates.work.of(spec, tokens))
  if kind == "gpu" and num_devices > 1:
    work += _OVERLAP * layer
  if settings.remat and rates.rematerialised:
    return Kept(embeddings + num_layers * rates.rematerialised.of(spec, tokens) + first, work + layer)
  return Kept(embeddings + num_layers * layer + first, work)
