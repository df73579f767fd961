"""Makes the config of a training from an estimator's parameters, and errors that name these parameters."""

import contextlib
import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import ml_collections
import numpy as np

from xmc_jax import experiments, methods
from xmc_jax.config import checks, defaults
from xmc_jax.errors import ConfigError, UserError
from xmc_jax.training import members

# Parameters of the estimator, and the keys that get their values.
KEYS = {
  "method": "method.name",
  "encoder": "encoder.name",
  "minutes": "auto.minutes",
  "num_epochs": "train.num_epochs",
  "batch_size": "train.batch_size",
  "learning_rate": "train.learning_rate",
  "max_length": "data.max_length",
  "scores": "eval.scores",
  "random_state": "train.seed",
}
_NAMES = {key: name for name, key in KEYS.items()}
# Keys that `fit` sets, or that only files or a test table need; of data, all but those of the training.
_OF_FIT = {"name", "eval.num_examples", "eval.report_page"} | (
  {f"data.{name}" for name in defaults.KEYS["data"]} - {"data.max_length", "data.num_validation"}
)
_VALUE = r"(\"[^\"]*\"|[^\s;,)?]+)"  # of a flag in a message


def make(
  method: str, encoder: str, given: Mapping[str, Any], settings: Mapping[str, Any] | None
) -> ml_collections.ConfigDict:
  """Returns a checked config, still without the path of its data.

  Args:
    method: a file of experiments/, such as 'dexml'.
    encoder: a value of `config.encoder.name`. A bag starts from the experiment's first preset, other encoders
      from its preset for a pretrained one, or else from the method's defaults.
    given: values of other parameters in `KEYS`; None leaves a preset's value.
    settings: further keys by their dotted names.

  Raises:
    ConfigError: a value cannot work; the message names the parameter.
  """
  with named_by_parameters():
    if not isinstance(encoder, str):
      raise ConfigError(f"encoder = {encoder!r:.60} is not a text; for instance encoder='bag'")
    values = checks.flatten(_preset(method, encoder))
    values |= {"eval.num_examples": 0, "eval.report_page": False}
    values |= {"name": method, "data.path": "", "data.layout": "raw_json"}
    values |= {KEYS[name]: _plain(value) for name, value in given.items() if value is not None}
    values |= _checked(settings, values)
    nested: dict[str, Any] = {}
    for key, value in values.items():
      section, _, name = key.rpartition(".")
      (nested.setdefault(section, {}) if section else nested)[name] = value
    config = ml_collections.ConfigDict(nested)
    methods.check_config(config)
    if bool(config.auto.minutes) != (method == "auto"):
      raise ConfigError(
        f"minutes = {config.auto.minutes:g}: more than 0 goes with method='auto', 0 with others"
      )
    if method == "auto":
      members.check(config)
    return config


@contextlib.contextmanager
def named_by_parameters() -> Iterator[None]:
  """Lets errors in the block name parameters of the estimator in place of config keys and flags."""
  try:
    yield
  except UserError as error:
    raise type(error)(in_parameters(str(error))) from None


def in_parameters(message: str) -> str:
  """Returns a message with the estimator's parameters in place of config keys and flags.

  >>> in_parameters("train.batch_size = 0 is less than 1; set --config.train.batch_size=1 or more")
  'batch_size = 0 is less than 1; set batch_size=1 or more'
  """
  message = re.sub(rf"(?:--|\b)config\.([\w.]+)={_VALUE}", _assigned, message)
  message = re.sub(rf"--(workdir|scores)={_VALUE}", lambda found: f"{found[1]}={_quoted(found[2])}", message)
  message = re.sub(r"--config\.([\w.]+\w)", _parameter, message)
  for name, key in KEYS.items():
    message = re.sub(rf"(?<![\w.'\"]){re.escape(key)}(?![\w.'\"])", name, message)
  return message


def _assigned(found: re.Match) -> str:
  key, value = found[1], _quoted(found[2])
  return f"{_NAMES[key]}={value}" if key in _NAMES else f"settings={{{key!r}: {value}}}"


def _parameter(found: re.Match) -> str:
  return _NAMES.get(found[1], f"settings[{found[1]!r}]")


def _quoted(value: str) -> str:
  """Returns a value of a flag as Python writes it."""
  is_plain = re.fullmatch(r"-?[\d.]+(e-?\d+)?|True|False|'.*'|\".*\"", value)
  return value if is_plain else repr(value)


def _checked(settings: Mapping[str, Any] | None, known: Mapping[str, Any]) -> dict[str, Any]:
  """Returns settings with plain values; refuses keys that do not exist or that are set otherwise."""
  if settings is None:
    return {}
  if not isinstance(settings, Mapping):
    raise ConfigError(f"settings = {settings!r:.60} is not a dict; for instance settings={{'eval.k': 10}}")
  for key in settings:
    if key in _NAMES:
      raise ConfigError(f"settings[{key!r}] is a parameter of its own: give it as {_NAMES[key]}=...")
    if key in _OF_FIT:
      raise ConfigError(f"settings[{key!r}] is set by fit; leave it out")
    if key not in known:
      raise ConfigError(f"settings: {checks.unknown_key(str(key), known, methods.SETTINGS)}")
  return {key: _plain(value) for key, value in settings.items()}


def _plain(value: Any) -> Any:
  """Returns a number of NumPy, as parameter grids have them, as Python's."""
  return value.item() if isinstance(value, np.generic) else value


def _preset(method: str, encoder: str) -> ml_collections.ConfigDict:
  """Returns the config that values are changed in: a preset of experiments/METHOD.py."""
  stems = (path.stem for path in experiments.FOLDER.glob("[a-z]*.py"))
  names = sorted(stem for stem in stems if stem != "common" and not stem.endswith("_classifier"))
  if method not in names:
    near = difflib.get_close_matches(str(method), names, 1)
    hint = f"; did you mean method={near[0]!r}?" if near else ""
    raise ConfigError(f"method = {method!r:.60} is not one of {', '.join(names)}{hint}")
  return experiments.for_encoder(method, encoder)
