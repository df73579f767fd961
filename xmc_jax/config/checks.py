"""Checks a config's values, each alone and several together. Loads no jax.

A fault is one line with key, value, limit and remedy; the override that it proposes
after `--config.` is accepted.
"""

import difflib
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from xmc_jax.config.defaults import keys_of
from xmc_jax.config.keys import LARGEST, Key, Settings, flatten, shown

_NEEDED = ("name", "encoder.name", "method.name", "data.text")  # texts that must not be empty

_TYPES = {
  bool: "True or False",
  int: "a whole number",
  float: "a number",
  str: "a text",
  tuple: "a list in parentheses",
}


def faults(config: Any, methods: Mapping[str, Settings]) -> Iterator[str]:
  """Yields the faults of a config, a line each; later ones suppose that the earlier ones are corrected.

  The config may be any object that a config file has made; if it names no method, the first one is used.
  """
  wanted = "it must return xmc_jax.default_config() with other values"
  if not hasattr(config, "to_dict"):
    yield f"get_config() gave {_shown(config)}; {wanted}"
    return
  try:
    values = flatten(config)
  except Exception as error:  # a value that is computed when it is read can raise anything
    yield f"get_config() gave values that cannot be read ({type(error).__name__}: {error!s:.80}); {wanted}"
    return
  name: Any = values.get("method.name")
  settings = methods[name if isinstance(name, str) and name in methods else next(iter(methods))]
  known = keys_of(settings)
  yield from _key_faults(values, known, methods)
  for key, declared in known.items():
    if fault := type_fault(key, values[key], declared.default):
      yield fault
  yield from _text_faults(values)
  yield from name_faults(name, methods)
  yield from _choice_faults(values, known)
  yield from _range_faults(values, known)
  for check in settings.checks:
    yield from check(values)
  yield from _joint_faults(values)
  if values["encoder.name"] in ("bag", "gru"):
    yield from _table_faults(values)


def depth_of(metric: str) -> int:
  """Returns the k of 'P@k'."""
  return int(metric.partition("@")[2])


def name_faults(name: str, methods: Iterable[str]) -> Iterator[str]:
  """Yields a fault if no method has this `method.name`."""
  if name not in methods:
    near = difflib.get_close_matches(name, methods, n=1)
    hint = f"did you mean --config.method.name={near[0]}?" if near else "see methods/"
    yield f"method.name = {name!r:.60} is not one of {', '.join(methods)}; {hint}"


def unknown_key(key: str, known: Iterable[str], methods: Mapping[str, Settings]) -> str:
  """Returns the fault for a key that a config does not have."""
  known = list(known)
  section, _, name = key.partition(".")
  if having := [method for method in methods if section == "method" and name in methods[method].keys]:
    names = " or ".join(map(repr, having))
    return f"config has no key {_shown(key)}: it is a setting of method.name = {names}"
  if below := [name for name in known if name.startswith(f"{key}.")]:
    return f"config.{key} is a section, not a value; set one of {', '.join(below)}"
  if above := [name for name in known if key.startswith(f"{name}.")]:
    return f"config.{above[0]} is a value, not a section; set --config.{above[0]}, not {_shown(key)}"
  near = [name for name in known if name.rpartition(".")[2] == key]
  near = near or _nearest(key, known)
  if near:
    return f"config has no key {_shown(key)}; did you mean {' or '.join(map(repr, near))}?"
  beside = [name for name in known if name.startswith(f"{section}.")]
  options = beside or dict.fromkeys(name.partition(".")[0] for name in known)
  return f"config has no key {_shown(key)}; there are {', '.join(options)}"


def _nearest(key: str, known: list[str]) -> list[str]:
  """Returns the known key that is most like this one; all of them, if several are equally like it."""
  near = difflib.get_close_matches(key, known, n=3, cutoff=0.75)
  likeness = [difflib.SequenceMatcher(None, name, key).ratio() for name in near]
  return [name for name, like in zip(near, likeness) if like == likeness[0]]


def type_fault(key: str, value: Any, usual: Any) -> str:
  """Returns the fault for a value of the wrong type; '' if its type is right."""
  wanted = type(usual)
  legal = (int, float) if wanted is float else wanted
  if isinstance(value, legal) and (wanted is bool or not isinstance(value, bool)):
    return ""
  remedy = "its default is ''" if usual == "" else f"for instance --config.{key}={shown(usual)}"
  return f"{key} = {_shown(value)} is not {_TYPES[wanted]}; {remedy}"


def _shown(value: Any) -> str:
  text = " ".join(repr(value).split())  # some take several lines
  return text if len(text) <= 60 else text[:60] + "..."


def _key_faults(values: dict, known: dict, methods: Mapping[str, Settings]) -> Iterator[str]:
  for key in values.keys() - known.keys():
    yield unknown_key(str(key), known, methods)
  for key in known.keys() - values.keys():
    yield f"config has no {key}; start from xmc_jax.default_config(), which has every key"


def _choice_faults(values: dict, known: dict[str, Key]) -> Iterator[str]:
  for key, legal in ((key, declared.choices) for key, declared in known.items()):
    value = values[key]
    if legal and value not in legal:
      near = difflib.get_close_matches(value, legal, n=1)
      hint = f"did you mean --config.{key}={near[0]}?" if near else f"set --config.{key}={legal[0]}"
      who = f", of method.name = {values['method.name']!r}" if key.startswith("method.") else ""
      yield f"{key} = {_shown(value)} is not one of {', '.join(map(repr, legal))}{who}; {hint}"


def _text_faults(values: dict) -> Iterator[str]:
  """Yields faults of texts that are empty, and of a name that is no folder below runs/."""
  for key in _NEEDED:
    if not values[key].strip():
      yield f"{key} is empty; it must name something"
  name = pathlib.PurePath(values["name"])
  if name.is_absolute() or ".." in name.parts or not name.parts:
    yield (
      f"name = {_shown(values['name'])} is no folder below runs/; set --config.name=run, and give another "
      "place by --workdir"
    )


def _range_faults(values: dict, known: dict[str, Key]) -> Iterator[str]:
  for key, declared in known.items():
    if not declared.is_number:
      continue
    value, least, most = values[key], declared.least, declared.most
    if declared.above is not None:
      if not declared.above < value <= most:
        usual = 1.0 if key == "method.temperature" and not values["encoder.normalize"] else declared.default
        yield (
          f"{key} = {_shown(value)} must be more than {declared.above} and at most {most}; "
          f"for instance --config.{key}={usual}"
        )
    elif declared.below is not None:
      if not least <= value < declared.below:
        yield (
          f"{key} = {_shown(value)} must be at least {least} and less than {declared.below}; "
          f"for instance --config.{key}={declared.default}"
        )
    elif not value >= least:
      yield f"{key} = {_shown(value)} is less than {least}; set --config.{key}={least} or more"
    elif value > most:
      yield f"{key} = {_shown(value)} is more than {most}; set --config.{key}={most} or less"


def _joint_faults(values: dict) -> Iterator[str]:
  batch, devices = values["train.batch_size"], values["mesh.data"]
  if devices and batch % devices:
    up = -(-batch // devices) * devices  # fewer rows could double UniDEC's clusters
    fits = up if up <= LARGEST else up - devices
    yield (
      f"train.batch_size = {batch} does not divide by mesh.data = {devices}; "
      f"the next that does: --config.train.batch_size={fits}"
    )
  depth = depth_of(values["eval.metric"])
  if depth > values["eval.k"]:
    yield (
      f"eval.metric = {values['eval.metric']!r} looks at {depth} labels per point, and eval.k = "
      f"{values['eval.k']} keeps fewer; set --config.eval.k={depth}, or --config.eval.metric=P@1"
    )
  patience = values["train.early_stop_evals"]
  if values["train.refit"] and not values["data.num_validation"]:
    yield (
      "train.refit = True trains again with the rows held out, and data.num_validation = 0; "
      "set --config.train.refit=False, or --config.data.num_validation=-1"
    )
  if values["train.refit"] and not values["train.num_epochs"]:
    yield (
      "train.refit = True trains again, and train.num_epochs = 0 trains nothing; "
      "set --config.train.refit=False"
    )
  if patience and not values["data.num_validation"]:
    yield (
      f"train.early_stop_evals = {patience} needs validation rows, and data.num_validation = 0; "
      "set --config.train.early_stop_evals=0, or --config.data.num_validation=-1"
    )


def _table_faults(values: dict) -> Iterator[str]:
  """Yields faults of encoders that start from a table of token embeddings: a bag, or a GRU."""
  name, width = values["encoder.name"], values["encoder.width"]
  if values["encoder.pooling"] not in ("auto", "mean"):
    yield (
      f"encoder.pooling = {values['encoder.pooling']!r}: encoder.name = {name!r} is a mean over all tokens; "
      "set --config.encoder.pooling=mean"
    )
  for key in ("encoder.num_layers", "encoder.num_frozen_layers"):
    if values[key]:
      yield f"{key} = {values[key]}: encoder.name = {name!r} has no layers to count; set --config.{key}=0"
  if rate := values["encoder.attention_dropout"]:
    yield (
      f"encoder.attention_dropout = {rate}: encoder.name = {name!r} has no attention; "
      "set --config.encoder.attention_dropout=0.0"
    )
  if name == "gru" and width % 2:
    yield (
      f"encoder.width = {width} is odd, and each of a GRU's two directions has half of it; "
      f"set --config.encoder.width={width + 1 if width < LARGEST else width - 1}"
    )
