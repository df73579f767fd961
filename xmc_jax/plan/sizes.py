"""Collects the inputs of a plan: the counts in `config.plan`, and an encoder's sizes without its weights."""

from typing import NamedTuple

import ml_collections
import numpy as np

from xmc_jax.data import Dataset
from xmc_jax.data.dataset import LABEL, QUERY
from xmc_jax.data.tokens import TokenTable
from xmc_jax.errors import ConfigError
from xmc_jax.models import KNOWN, BagSpec, EncoderSpec, GruSpec, known_spec, starts_from_table
from xmc_jax.models.locate import locate_here
from xmc_jax.models.pretrained import describe

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
    source: where the encoder's sizes come from, in words.
    graphs: metadata graphs: of each the name, and which of the sides 'query' and 'label' it has.
    are_counted: whether they are those of data that were read.
  """

  num_points: int
  num_labels: int
  tokens_per_point: float
  tokens_per_label: float
  labels_per_point: float
  encoder: EncoderSpec | BagSpec | GruSpec
  source: str = "as given"
  graphs: tuple[tuple[str, tuple[str, ...]], ...] = ()
  are_counted: bool = False


def sizes_of(config: ml_collections.ConfigDict, dataset: Dataset | None = None) -> Sizes:
  """Returns the sizes that `config.plan` and `config.encoder` name; reads no weights and asks no hub.

  Args:
    config: the config.
    dataset: the prepared data, whose sizes come before those of `config.plan`; None if they are not here.

  Raises:
    ConfigError: the number of labels is missing, or the encoder's sizes are not known on this machine.
  """
  given, longest = config.plan, float(config.data.max_length)
  if not given.num_labels and dataset is None:
    raise ConfigError(
      "plan.num_labels = 0: the data are not here, so a plan must be told how many labels there are; "
      "for instance --config.plan.num_labels=131073"
    )
  if not config.mesh.data:
    raise ConfigError(
      "mesh.data = 0 stands for the devices of the machine that trains, which a plan does not know; for "
      "instance --config.mesh.data=8"
    )
  encoder, source = _encoder(config.encoder)
  if dataset is not None:
    counted = sizes_of_data(config, dataset, encoder)
    labelled = dataset.train.num_labelled  # the others take no part in a training
    return counted._replace(num_points=labelled, source=source, are_counted=True)
  names = config.method.get("graphs") or range(given.num_graphs)
  return Sizes(
    num_points=given.num_points,
    num_labels=given.num_labels,
    tokens_per_point=min(given.tokens_per_point or longest, longest),
    tokens_per_label=min(given.tokens_per_label or longest, longest),
    labels_per_point=given.labels_per_point or _LABELS_PER_POINT,
    encoder=encoder,
    source=source,
    graphs=tuple((str(name), (QUERY, LABEL)) for name in names) or (("none", ()),),
  )


def sizes_of_data(
  config: ml_collections.ConfigDict, dataset: Dataset, encoder: EncoderSpec | BagSpec | GruSpec
) -> Sizes:
  """Returns the sizes of prepared data, a `data.Dataset`, and of a local encoder."""

  def tokens(table: TokenTable) -> float:
    return float(np.minimum(table.lengths, config.data.max_length).mean())

  train = dataset.train
  return Sizes(
    num_points=len(train),
    num_labels=dataset.num_labels,
    tokens_per_point=tokens(train.tokens),
    tokens_per_label=tokens(dataset.labels.tokens),
    labels_per_point=train.truth.nnz / max(len(train), 1),
    encoder=encoder,
    graphs=tuple(dataset.graph_kinds.items()),
  )


def _encoder(settings: ml_collections.ConfigDict) -> tuple[EncoderSpec | BagSpec | GruSpec, str]:
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
    columns = getattr(table, "embedding_width", table.width)
    if not starts_from_table(settings):
      vocab_size, beside = table.vocab_size, f"with the table of {settings.init_table}"
  if settings.name == "bag":
    return BagSpec(vocab_size, columns), f"a bag {beside}"
  return GruSpec(vocab_size, columns, settings.width), f"a GRU {beside}"


def _described(key: str, name: str, num_layers: int = 0) -> EncoderSpec | BagSpec | GruSpec:
  """Returns an encoder's sizes, from its config.json on this machine, else from `KNOWN`."""
  if not locate_here(name) and known_spec(name) is None:
    raise ConfigError(
      f"{key} = {name!r}: its config.json is not on this machine, and a plan asks no hub; set --config.{key}="
      f"distilbert-base-uncased or another of {', '.join(sorted(KNOWN))}, or a folder with config.json"
    )
  return describe(name, num_layers=num_layers, pretrained=False).spec
