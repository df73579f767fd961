"""Which methods there are, and where their settings stand: a new method has one line here.

A method's file is loaded when its name is used, and jax with it.
"""

import difflib
import importlib
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from xmc_jax.config.defaults import KEYS
from xmc_jax.config.keys import Key, Settings

METHODS = {
  "ance": "xmc_jax.methods.ance",
  "classifier": "xmc_jax.methods.classifier",
  "dexa": "xmc_jax.methods.dexa",
  "dexml": "xmc_jax.methods.dexml",
  "dpr": "xmc_jax.methods.dpr",
  "ngame": "xmc_jax.methods.ngame",
  "ova": "xmc_jax.methods.ova",
  "prime": "xmc_jax.methods.prime",
  "rae_xmc": "xmc_jax.methods.rae_xmc",
  "ramen": "xmc_jax.methods.ramen",
  "unidec": "xmc_jax.methods.unidec",
}
FIRST = "dexml"  # whose settings a config has where nothing is said


def module_of(name: str) -> ModuleType:
  """Returns the file of a method, loaded: it has `SETTINGS` and `make`."""
  return importlib.import_module(METHODS[name])


def settings_of(name: str) -> Settings:
  """Returns the settings that a method declares."""
  return module_of(name).SETTINGS


def keys_of(settings: Settings | None = None) -> dict[str, Key]:
  """Returns every key of a config by its dotted name; without settings, those outside `config.method`."""
  found = dict(_flat(KEYS))
  if settings is not None:
    found["method.name"] = Key(FIRST, "the paper: one of the files in xmc_jax/methods")
    found |= {f"method.{name}": key for name, key in settings.keys.items()}
  return found


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Key]]:
  for name, value in section.items():
    if isinstance(value, Key):
      yield prefix + name, value
    else:
      yield from _flat(value, f"{prefix}{name}.")


def name_faults(name: str) -> Iterator[str]:
  """Yields what to say of a `method.name` that no method has."""
  if name not in METHODS:
    near = difflib.get_close_matches(name, METHODS, n=1)
    hint = f"did you mean --config.method.name={near[0]}?" if near else "see methods/"
    yield f"method.name = {name!r:.60} is not one of {', '.join(METHODS)}; {hint}"


def owners(key: str) -> list[str]:
  """Returns the names of the methods that have a setting, given by its dotted key."""
  section, _, name = key.partition(".")
  return [method for method in METHODS if section == "method" and name in settings_of(method).keys]
