"""The papers, one file each. A new method is a file here and a line in `_METHODS`."""

import difflib
import importlib

from xmc_jax import config as configs
from xmc_jax.batching import builder
from xmc_jax.errors import ConfigError
from xmc_jax.types import BATCHES, DatasetInfo, Method

_METHODS = {
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

# Keys that only one method takes, and by which others can tell (plan/).
_OF_GRAPHS = (
  *("base", "graphs", "query_graph_weights", "label_graph_weights", "random_edges", "augment_truth"),
  *("walk_hops", "walk_restart", "walk_kept", "walk_sides", "anchor_sampling", "max_augmented_pairs"),
  *("graph_pruning", "pruning_by", "pruning_threshold", "pruning_first_epoch", "pruning_every_epochs"),
)
_OWN = {
  "centroids": "prime",
  "log_q": "unidec",
  "triplet_positives": "prime",
  "prototype_width": "prime",
  "point_positive_weight": "rae_xmc",
  **dict.fromkeys(_OF_GRAPHS, "ramen"),
}


def names() -> list[str]:
  return sorted(_METHODS)


def check(config) -> None:
  """Raises ConfigError for an unknown `config.method.name`, or settings that the method does not have.

  A method's module may hold FIXED: keys of `config.method` and the one value, or the values, that it takes;
  NEEDED: keys that must not be 0, and what they may be; and BASES: the modules of what `config.method.base`
  may name, which have such demands too.
  """
  name = config.method.name
  if name not in _METHODS:
    near = difflib.get_close_matches(name, _METHODS, n=1)
    hint = f"did you mean --config.method.name={near[0]}?" if near else "see methods/"
    raise ConfigError(f"method.name = {name!r:.60} is not one of {', '.join(names())}; {hint}")
  module = _module(name)
  _check_demands(config, f"method.name = {name!r}", module)
  if bases := getattr(module, "BASES", {}):
    _check_demands(config, f"method.base = {config.method.base!r}", bases[config.method.base])
  usual = configs.default().method
  for key, owner in _OWN.items():
    if owner != name and config.method[key] != usual[key]:
      shown = f'"{usual[key]}"' if isinstance(usual[key], tuple) else usual[key]
      raise ConfigError(
        f"method.{key} = {config.method[key]!r} is for method.name = {owner!r}, not {name!r}; "
        f"set --config.method.{key}={shown}"
      )


def _check_demands(config, who: str, module) -> None:
  for key, legal in getattr(module, "FIXED", {}).items():
    if config.method[key] not in legal:
      raise ConfigError(
        f"method.{key} = {config.method[key]!r}: {who} takes {' or '.join(map(repr, legal))}; "
        f"set --config.method.{key}={legal[0]}"
      )
  for key, example in getattr(module, "NEEDED", {}).items():
    if not config.method[key]:
      raise ConfigError(f"method.{key} = 0: {who} takes 1 or more; set --config.method.{key}={example}")


def check_scores(scores: str, config, method: Method) -> None:
  """Raises ConfigError for scores that the method does not rank by; without views there are the encoder's."""
  legal = ("hybrid", "fused", *(method.views or ("encoder",)), *configs.SOURCES)
  if scores in legal:
    return
  if not method.views:
    raise ConfigError(
      f"scores = {scores!r}: this run has no classifiers; it ranks by {', '.join(map(repr, legal))}; leave "
      "--scores out (--config.eval.scores=hybrid)"
    )
  raise ConfigError(
    f"scores = {scores!r}: method {config.method.name!r} has {', '.join(map(repr, legal))}; "
    "set --config.eval.scores=hybrid, or --scores=hybrid with a trained run"
  )


def builds_on_a_run(config) -> bool:
  """Whether the method starts from another run's encoder, and cannot do without one."""
  return getattr(_module(config.method.name), "NEEDS_INIT", False)


def make(config, info: DatasetInfo) -> Method:
  """The method that `config.method.name` names.

  Raises:
    ConfigError: no such method.
    ValueError: the method has a refresh for batches that no batch reads.
  """
  check(config)
  method = _module(config.method.name).make(config, info)
  for name, refresh in method.refreshes.items():
    if refresh.target == BATCHES and not builder.reads(name):
      raise ValueError(f"no batch reads the refresh {name!r}; give it target=EXTRA_STATE")
  return method._replace(batch=method.batch._replace(positive_sampling=config.method.positive_sampling))


def _module(name: str):
  return importlib.import_module(_METHODS[name])
