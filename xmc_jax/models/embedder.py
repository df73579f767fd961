"""Builds an Embedder from `config.encoder`: every method gets its encoder from here."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, TypeAlias

import flax
import jax
import jax.numpy as jnp
import ml_collections

from xmc_jax.config.defaults import KEYS
from xmc_jax.errors import ConfigError
from xmc_jax.models import fused_attention, hardware, windows
from xmc_jax.models.architectures import Spec
from xmc_jax.models.bag import Bag, BagSpec
from xmc_jax.models.bag_gru_files import table_width
from xmc_jax.models.encoder import Encoder, EncoderSpec
from xmc_jax.models.gru import Gru, GruSpec
from xmc_jax.models.heads import Head, pool
from xmc_jax.models.layers import ROUNDED
from xmc_jax.models.locate import source_key
from xmc_jax.models.pretrained import describe, load_pretrained, save_pretrained, token_table
from xmc_jax.models.sentence_modules import POOLINGS, head_settings, save_sentence_modules
from xmc_jax.types import PyTree

EncoderConfig: TypeAlias = ml_collections.ConfigDict | SimpleNamespace
PARAMETERS = ("encoder", "projection")
"""Names the top-level parts of an Embedder's parameters."""


class Embedder(NamedTuple):
  """Holds a text encoder as pure functions.

  Attributes:
    init: `key -> params`, a nested dict; pretrained weights are read here, on the host. Not for `jax.jit`.
    embed: `(params, tokens, key=None) -> [n, width]` float32; dropout only with a key.
    apply: `(params, ids [n, T], mask [n, T], key=None, num_places=None, padded_last=False) -> [n, width]`:
      `embed` under any mask; for `num_places` and `padded_last` see `Encoder`. A text longer than a
      transformer's positions is read in windows (windows.py).
    width: of the embeddings.
    spec: EncoderSpec, BagSpec or GruSpec.
    source: where the weights come from, in words.
    tokenizer_file: path of the encoder's tokenizer.json, or None.
    save: `(params, folder)`; writes a Hugging Face and sentence-transformers folder.
  """

  init: Callable
  embed: Callable
  apply: Callable
  width: int
  spec: Spec
  source: str
  tokenizer_file: str | None
  save: Callable


def build(
  encoder_config: EncoderConfig, *, vocab_size: int | None = None, special_ids: Sequence[int] = ()
) -> Embedder:
  """Makes the encoder that a config describes.

  Args:
    encoder_config: `config.encoder` (docs/settings.md), or an object with some of its attributes: at least
      `name`. Values are legal, as `config.check` sees to. A bag ignores the pooling.
    vocab_size: the tokenizer's; needed by a table from scratch, checked against the table otherwise.
    special_ids: token ids that a bag leaves out of its mean.

  Raises:
    ConfigError: a value that cannot work. UserError, DataError: the encoder is missing or cannot be used.
  """
  settings = SimpleNamespace(
    **{name: getattr(encoder_config, name, key.default) for name, key in KEYS["encoder"].items()}
  )
  if settings.pooling not in ("auto", *POOLINGS):
    raise ConfigError(f"config.encoder.pooling={settings.pooling!r}; set auto, {', '.join(POOLINGS)}")
  name = getattr(settings, source_key(settings))
  of_a_table = source_key(settings) == "init_table"
  if of_a_table and not name:
    spec = _spec_of_table(settings, vocab_size, settings.width, special_ids)
    return _embedder(settings, spec, None, "from scratch", None)
  described = describe(name, num_layers=settings.num_layers, pretrained=settings.pretrained)
  spec = described.spec
  if of_a_table:
    spec = _spec_of_table(settings, spec.vocab_size, table_width(spec), special_ids)
  else:
    settings = SimpleNamespace(**vars(settings) | head_settings(settings, described.modules))
    if isinstance(spec, BagSpec):
      spec = dataclasses.replace(spec, special_ids=tuple(special_ids))
  if vocab_size and vocab_size > spec.vocab_size:
    raise ConfigError(
      f"the tokenizer has {vocab_size} tokens, but encoder '{name}' only {spec.vocab_size} word embeddings; "
      "use the encoder's own tokenizer"
    )
  if not settings.pretrained:
    source = f"from scratch, sizes of {described.found}"
    return _embedder(settings, spec, None, source, described.tokenizer_file)
  source = f"token embeddings of {described.found}" if settings.name == "gru" else described.found
  read = functools.partial(_read, settings, name)
  return _embedder(settings, spec, read, source, described.tokenizer_file)


def _read(settings, name):
  """Reads the weights under a name; for a bag or a GRU, keeps only the token table."""
  loaded = load_pretrained(name, num_layers=settings.num_layers)
  if source_key(settings) == "name":
    return loaded
  table = token_table(loaded.params)
  projection = loaded.projection if settings.name == "bag" else None
  return loaded._replace(params={"word": table}, projection=projection)


def _spec_of_table(settings, vocab_size, columns, special_ids):
  if settings.name == "bag":
    return BagSpec(vocab_size, columns, tuple(special_ids))
  return GruSpec(vocab_size, columns, settings.width)


def _modules(settings, spec, dtype):
  """Returns the Linen modules for the encoder and for the head."""
  head = Head(
    settings.projection_dim, settings.projection_tanh, settings.embedding_dropout, settings.normalize, dtype
  )
  num_layers = getattr(spec, "num_layers", 0)
  if settings.num_frozen_layers > num_layers:
    raise ConfigError(
      f"config.encoder.num_frozen_layers={settings.num_frozen_layers}, but '{settings.name}' has "
      f"{num_layers} layers; set 0 to {num_layers}"
    )
  if settings.attention_dropout and not isinstance(spec, EncoderSpec):
    raise ConfigError(
      f"config.encoder.attention_dropout={settings.attention_dropout}, but '{settings.name}' has no "
      "attention; set config.encoder.attention_dropout=0"
    )
  if isinstance(spec, BagSpec):
    return Bag(spec, dropout=settings.dropout), head
  if isinstance(spec, GruSpec):
    if settings.pooling not in ("auto", "mean"):
      raise ConfigError(f"config.encoder.pooling={settings.pooling!r}, and a GRU takes the mean; set 'mean'")
    return Gru(spec, dtype, dropout=settings.dropout, remat=settings.remat), head
  encoder = Encoder(
    spec,
    dtype,
    implementation=fused_attention.choose_attention(dtype, spec.width // spec.num_heads),
    dropout=settings.dropout,
    attention_dropout=settings.attention_dropout,
    num_frozen_layers=settings.num_frozen_layers,
    remat=settings.remat,
    first_only=settings.pooling == "cls",
  )
  return encoder, head


@functools.partial(jax.jit, static_argnums=0)  # a plan makes the same encoder many times
def _from_scratch(encoder, key):
  return encoder.init(key, jnp.zeros((1, 8), jnp.int32), jnp.ones((1, 8), bool))["params"]


def _embedder(settings, spec, read, source, tokenizer_file):
  """Builds the Embedder; `read() -> Pretrained` gives the weights, None starts from scratch."""
  encoder, head = _modules(settings, spec, hardware.choose_dtype(settings.dtype))

  def init(key):
    encoder_key, head_key = jax.random.split(key)
    head_params = head.init(head_key, jnp.zeros((1, spec.width))).get("params", {})
    if read is None:
      return {"encoder": _from_scratch(encoder, encoder_key), **head_params}
    loaded = read()
    if loaded.projection and loaded.projection["kernel"].shape[1] == settings.projection_dim:
      head_params = {"projection": loaded.projection}
    # A GRU takes only the table from another encoder.
    params = _from_scratch(encoder, encoder_key) if settings.name == "gru" else {}
    return {"encoder": params | flax.traverse_util.unflatten_dict(loaded.params, sep="/"), **head_params}

  def apply(params, ids, mask, key=None, num_places=None, padded_last=False):
    encoder_key, head_key = (None, None) if key is None else jax.random.split(key)
    mask = mask.astype(bool)
    rounded = {ROUNDED: params[ROUNDED]} if ROUNDED in params else {}
    encode = functools.partial(encoder.apply, {"params": params["encoder"], **rounded})

    def pooled(ids, mask, *layout):
      hidden = encode(ids, mask, encoder_key, *layout)
      return hidden[:, 0].astype(jnp.float32) if encoder.first_only else pool(hidden, mask, settings.pooling)

    if isinstance(spec, EncoderSpec):
      encoded = windows.read(pooled, ids, mask, spec.max_positions, num_places, padded_last)
    else:
      encoded = encode(ids, mask, encoder_key)
    return head.apply({"params": params}, encoded, head_key)

  def embed(params, tokens, key=None):
    mask = jnp.arange(tokens.ids.shape[1]) < jnp.asarray(tokens.lengths)[:, None]
    most = tokens.num_real_tokens
    packs = hardware.packing_pays() and most is not None and most < tokens.ids.size
    return apply(params, tokens.ids, mask, key, most if packs else None, padded_last=True)

  return Embedder(
    init=init,
    embed=embed,
    apply=apply,
    width=settings.projection_dim or spec.width,
    spec=spec,
    source=source,
    tokenizer_file=tokenizer_file,
    save=functools.partial(_save, settings, spec, tokenizer_file),
  )


def packs_tokens(encoder_config: EncoderConfig) -> bool:
  """Returns whether the encoder leaves out padding on this machine, if `Tokens.num_real_tokens` is known."""
  return hardware.packing_pays() and source_key(encoder_config) == "name"


def _save(settings, spec, tokenizer_file, params, folder):
  params = jax.device_get(params)
  flat = flax.traverse_util.flatten_dict(params["encoder"], sep="/")
  save_pretrained(flat, spec, folder, tokenizer_file)
  save_sentence_modules(
    Path(folder),
    pooling=settings.pooling if isinstance(spec, EncoderSpec) else "mean",
    unit=settings.normalize,
    width=spec.width,
    projection=params.get("projection"),
    tanh=settings.projection_tanh,
  )


def frozen_paths(encoder_config: EncoderConfig) -> tuple[str, ...]:
  """Returns the prefixes of the parameter paths that `encoder_config.num_frozen_layers` freezes."""
  frozen = encoder_config.num_frozen_layers
  return ("encoder/embeddings/", *(f"encoder/layer_{i}/" for i in range(frozen))) if frozen else ()


def with_rounded_kernels(encoder_config: EncoderConfig, params: PyTree) -> PyTree:
  """Adds the encoder's kernels in the type of its products; the gradient stays that of the float32 kernels.

  So they are rounded once a step: a chunk of texts would otherwise round all of them again.

  Args:
    encoder_config: as `build` takes it.
    params: those of an Embedder, and others.

  Returns:
    `params`, with an entry ROUNDED that `Embedder.embed` reads; none where products are written in float32,
    as on a CPU.
  """
  dtype = hardware.product_dtype(hardware.choose_dtype(encoder_config.dtype))
  if dtype == jnp.float32:
    return params
  flat = flax.traverse_util.flatten_dict(params["encoder"])
  kernels = {path: jax.lax.stop_gradient(leaf) for path, leaf in flat.items() if path[-1] == "kernel"}
  rounded = {path: kernel.astype(dtype) for path, kernel in kernels.items()}
  return {**params, ROUNDED: flax.traverse_util.unflatten_dict(rounded)}
