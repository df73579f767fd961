"""Declares settings: the default of each, its legal values, and what it is. Loads no jax.

A method declares its settings in its own file (`SETTINGS`), from groups that it shares with others:

  SETTINGS = declare(
    embedding.SETTINGS,
    scale=Key(16.0, "of the cosines", above=0),
    loss=Key("softmax", "the loss to minimise", choices=("softmax", "binary")),
  )

From these come the config and its overrides, the errors for wrong values, docs/settings.md and fuzz tests.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

LARGEST = 2**31 - 1  # ids, steps and seeds are int32


class Key(NamedTuple):
  """Declares one setting.

  Attributes:
    default: the value if none is given; its type is the setting's type.
    about: what the setting is, in a few words.
    choices: the legal values, where these are few.
    least, most: the ends of a number's legal range.
    above, below: ends that are not legal themselves; they replace `least` and `most`.
  """

  default: Any
  about: str = ""
  choices: tuple = ()
  least: float = 0
  most: float = LARGEST
  above: float | None = None
  below: float | None = None

  @property
  def is_number(self) -> bool:
    return type(self.default) in (int, float)


Check = Callable[[Mapping[str, Any]], Iterator[str]]


class Settings(NamedTuple):
  """Holds the settings that a method reads from `config.method`.

  Attributes:
    keys: each setting by its name.
    checks: check several keys together: functions of all of a config's values, by dotted key and each legal
      by itself, that yield one line for each fault (key, value, limit, remedy).
    needs_run: whether the method needs another run to start from (`config.init_from`).
  """

  keys: Mapping[str, Key] = MappingProxyType({})
  checks: tuple[Check, ...] = ()
  needs_run: bool = False


def declare(
  *groups: Settings, checks: tuple[Check, ...] = (), needs_run: bool = False, **keys: Key
) -> Settings:
  """Returns the settings of all groups and the keys; the last declaration of a name counts.

  >>> pool = declare(temperature=Key(0.05, "of the scores", above=0))
  >>> declare(pool, temperature=Key(1.0, "of raw products", above=0)).keys["temperature"].default
  1.0
  """
  joined: dict[str, Key] = {}
  for group in groups:
    joined |= group.keys
  every = (*(check for group in groups for check in group.checks), *checks)
  return Settings(MappingProxyType(joined | keys), tuple(dict.fromkeys(every)), needs_run)


def flatten(section: Mapping, prefix: str = "") -> dict[str, Any]:
  """Flattens nested sections into one dict with dotted keys."""
  flat = {}
  for key, value in section.items():
    nested = (isinstance(value, Mapping) or hasattr(value, "to_dict")) and len(value)
    flat.update(flatten(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value})
  return flat


def shown(value: Any) -> str:
  """Returns a value as it is written on a command line; parentheses are quoted for the shell."""
  return f'"{value}"' if isinstance(value, tuple) else str(value)


def unused(switch: str, off: Any, **usual: Any) -> Check:
  """Returns a check: settings must have their usual values while another setting turns them off.

  Args:
    switch: the name of that other setting, below `config.method`.
    off: its value that turns the settings off.
    usual: the settings that are not read then, with their usual values.
  """

  def check(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in usual.items():
      key = f"method.{name}"
      if values[f"method.{switch}"] == off and values[key] != value:
        why = f"has no effect when method.{switch} = {off!r}"
        yield f"{key} = {values[key]!r} {why}; set --config.{key}={shown(value)}, or another method.{switch}"

  return check
