"""The papers, one file each. A new method is a file here and a line in `_METHODS`."""

import difflib
import importlib

from xmc_jax.contract import ConfigError, DatasetInfo, Method

_METHODS = {
  "dexml": "xmc_jax.methods.dexml",
}


def names() -> list[str]:
  return sorted(_METHODS)


def check(config) -> None:
  """Raises ConfigError if there is no method of the name `config.method.name`."""
  name = config.method.name
  if name not in _METHODS:
    near = difflib.get_close_matches(name, _METHODS, n=1)
    hint = f"did you mean --config.method.name={near[0]}?" if near else "see methods/"
    raise ConfigError(f"method.name = {name!r} is not one of {', '.join(names())}; {hint}")


def make(config, info: DatasetInfo) -> Method:
  """The method that `config.method.name` names.

  Raises:
    ConfigError: no such method.
  """
  check(config)
  return importlib.import_module(_METHODS[config.method.name]).make(config, info)
