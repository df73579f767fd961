"""The inputs of a plan: the counts in `config.plan`, and an encoder's sizes without its weights."""

import dataclasses
from typing import NamedTuple

import numpy as np

from xmc_jax.errors import ConfigError
from xmc_jax.models import KNOWN, BagSpec, EncoderSpec, GruSpec, known_spec, load_pretrained
from xmc_jax.models.locate import locate_here

_VOCABULARY = 30_522  # of a new table; a tokenizer trained on the data has nearly as many tokens
_LABELS_PER_POINT = 5.0


class Sizes(NamedTuple):
  """Holds what a plan knows about the data and the encoder.

  Attributes:
    num_points: N; 0 if unknown.
    num_labels: L.
    tokens_per_point, tokens_per_label: averages, special tokens included.
    labels_per_point: average number of true labels.
    encoder: EncoderSpec, BagSpec or GruSpec.
    source: where the encoder's sizes come from, as text.
    num_sides: the most sides of metadata graphs that a method learns from (RAMEN).
  """

  num_points: int
  num_labels: int
  tokens_per_point: float
  tokens_per_label: float
  labels_per_point: float
  encoder: EncoderSpec | BagSpec | GruSpec
  source: str = "as given"
  num_sides: int = 0


def sizes_of(config) -> Sizes:
  """Returns the sizes that `config.plan` and `config.encoder` name; reads no weights and asks no hub.

  Raises:
    ConfigError: the number of labels is missing, or the encoder's sizes are not known on this machine.
  """
  given, longest = config.plan, float(config.data.max_length)
  if not given.num_labels:
    raise ConfigError(
      "plan.num_labels = 0: a plan does not look at the data and must be told how many labels there are; "
      "for instance --config.plan.num_labels=131073"
    )
  encoder, source = _encoder(config.encoder)
  return Sizes(
    num_points=given.num_points,
    num_labels=given.num_labels,
    tokens_per_point=min(given.tokens_per_point or longest, longest),
    tokens_per_label=min(given.tokens_per_label or longest, longest),
    labels_per_point=given.labels_per_point or _LABELS_PER_POINT,
    encoder=encoder,
    source=source,
    num_sides=2 * given.num_graphs * (config.method.name == "ramen"),
  )


def sizes_of_data(config, dataset, encoder: EncoderSpec | BagSpec | GruSpec) -> Sizes:
  """Returns the sizes of prepared data, a `data.Dataset`, and of a local encoder."""

  def tokens(table) -> float:
    return float(np.minimum(table.lengths, config.data.max_length).mean())

  train, chosen = dataset.train, config.method.graphs or dataset.graph_kinds
  sides = sum(len(dataset.graph_kinds.get(graph, ())) for graph in chosen)
  return Sizes(
    num_points=len(train),
    num_labels=dataset.num_labels,
    tokens_per_point=tokens(train.tokens),
    tokens_per_label=tokens(dataset.labels.tokens),
    labels_per_point=train.truth.nnz / max(len(train), 1),
    encoder=encoder,
    num_sides=sides * (config.method.name == "ramen"),
  )


def _encoder(settings) -> tuple[EncoderSpec | BagSpec | GruSpec, str]:
  if settings.name not in ("bag", "gru"):
    spec, frozen = _described("encoder.name", settings.name, settings.num_layers), settings.num_frozen_layers
    if frozen > (layers := getattr(spec, "num_layers", 0)):
      raise ConfigError(
        f"encoder.num_frozen_layers = {frozen}, but encoder.name = {settings.name!r} has {layers} layers; "
        f"set --config.encoder.num_frozen_layers={layers}, or less"
      )
    return spec, settings.name
  vocab_size, columns, beside = _VOCABULARY, settings.width, f"of {_VOCABULARY:,} tokens (assumed)"
  if settings.init_table:
    table = _described("encoder.init_table", settings.init_table)
    vocab_size, columns = table.vocab_size, getattr(table, "embedding_width", table.width)
    beside = f"with the table of {settings.init_table}"
  if settings.name == "bag":
    return BagSpec(vocab_size, columns), f"a bag {beside}"
  return GruSpec(vocab_size, columns, settings.width), f"a GRU {beside}"


def _described(key: str, name: str, num_layers: int = 0) -> EncoderSpec | BagSpec | GruSpec:
  """Returns an encoder's sizes, from its config.json on this machine, else from `KNOWN`."""
  if locate_here(name):
    return load_pretrained(name, num_layers=num_layers, weights=False).spec
  spec = known_spec(name)
  if spec is None:
    raise ConfigError(
      f"{key} = {name!r}: its config.json is not on this machine, and a plan asks no hub; set --config.{key}="
      f"distilbert-base-uncased or another of {', '.join(sorted(KNOWN))}, or a folder with config.json"
    )
  if num_layers > spec.num_layers:
    raise ConfigError(
      f"encoder.num_layers = {num_layers}, but {name} has {spec.num_layers} layers; "
      f"set --config.encoder.num_layers={spec.num_layers}, or less"
    )
  return dataclasses.replace(spec, num_layers=num_layers or spec.num_layers)
