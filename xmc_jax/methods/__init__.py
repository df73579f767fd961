"""Holds the papers' methods, one file each, and makes and checks their configs.

A new method is a file here with `SETTINGS` and `make`, and a line in `_FILES`. A file, and jax with it, is
loaded only when its method is used.
"""

from __future__ import annotations

import importlib
import pathlib
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING

import ml_collections

from xmc_jax import config as configs
from xmc_jax.errors import ConfigError

if TYPE_CHECKING:  # loads JAX, which --help does without
  from xmc_jax.types import DatasetInfo, Method

_FILES = {
  "dexml": "xmc_jax.methods.dexml",  # the method of a config that names none
  "ance": "xmc_jax.methods.ance",
  "classifier": "xmc_jax.methods.classifier",
  "dexa": "xmc_jax.methods.dexa",
  "dpr": "xmc_jax.methods.dpr",
  "ngame": "xmc_jax.methods.ngame",
  "ova": "xmc_jax.methods.ova",
  "prime": "xmc_jax.methods.prime",
  "rae_xmc": "xmc_jax.methods.rae_xmc",
  "ramen": "xmc_jax.methods.ramen",
  "unidec": "xmc_jax.methods.unidec",
}


def names() -> list[str]:
  """Returns the names of all methods."""
  return sorted(_FILES)


class _Declared(Mapping[str, configs.Settings]):
  """Maps each method's name to the settings that its file declares."""

  def __getitem__(self, name: str) -> configs.Settings:
    return _file(name).SETTINGS

  def __contains__(self, name: object) -> bool:
    return name in _FILES

  def __iter__(self) -> Iterator[str]:
    return iter(_FILES)

  def __len__(self) -> int:
    return len(_FILES)


SETTINGS = _Declared()


def default_config(name: str = "dexml") -> ml_collections.ConfigDict:
  """Returns a method's config: every key with its default.

  Raises:
    ConfigError: there is no such method.
  """
  return configs.default(name, SETTINGS)


def check_config(config: ml_collections.ConfigDict) -> None:
  """Raises ConfigError at the first value that cannot work, before any data is read."""
  configs.check(config, SETTINGS)


def read_config(path: pathlib.Path) -> ml_collections.ConfigDict:
  """Reads the config.json of a run folder.

  Keys that an older version did not know get their default.

  Raises:
    ConfigError: there is no such file, or it is not one that this version can use.
  """
  return configs.read(path, SETTINGS)


def check_scores(scores: str, config: ml_collections.ConfigDict, method: Method) -> None:
  """Raises ConfigError for scores that the method does not rank by; the default scorer is 'encoder'."""
  legal = ("hybrid", "fused", *(method.scorers or ("encoder",)), *configs.SOURCES)
  if scores in legal:
    return
  own = " (--config.eval.scores=hybrid)" if scores == config.eval.scores else ""
  if not method.scorers:
    raise ConfigError(
      f"scores = {scores!r}: this run has no classifiers; it ranks by {', '.join(map(repr, legal))}; leave "
      f"--scores out{own}"
    )
  raise ConfigError(
    f"scores = {scores!r}: method {config.method.name!r} has {', '.join(map(repr, legal))}; "
    f"set --scores=hybrid{own}"
  )


def builds_on_a_run(config: ml_collections.ConfigDict) -> bool:
  """Returns whether the method needs another run, whose encoder it starts from."""
  return SETTINGS[config.method.name].needs_run


def make(config: ml_collections.ConfigDict, info: DatasetInfo) -> Method:
  """Returns the method that `config.method.name` names.

  Raises:
    ConfigError: a setting does not work with these data.
    ValueError: the method has a refresh for batches that no batch reads.
  """
  from xmc_jax import types

  method = _file(config.method.name).make(config, info)
  for name, refresh in method.refreshes.items():
    is_read = name in (types.CLUSTERS, types.SHORTLIST) or name.startswith(types.KEPT)
    if refresh.target == types.BATCHES and not is_read:
      raise ValueError(f"no batch reads the refresh {name!r}; give it target=EXTRA_STATE")
  return method


def _file(name: str) -> ModuleType:
  return importlib.import_module(_FILES[name])
