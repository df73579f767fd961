"""xmc_jax: extreme multi-label text classification in JAX.

The public subpackages are loaded on first use, so that `import xmc_jax`, `--help`
and a config error cost no JAX start-up:

  xmc_jax.default_config   a method's config, to change and train
  xmc_jax.losses   softmax, decoupled_softmax, binary, ...
  xmc_jax.ops      top_k, ...
  xmc_jax.metrics  evaluate, inverse_propensity, ...
  xmc_jax.data     load, prepare, ...
  xmc_jax.models   load_encoder, ...
  xmc_jax.export   Exported: an exported run, to which labels can be added
  xmc_jax.serve    app: a page and a JSON API over a Model, for an ASGI server
  xmc_jax.train    from a config to a trained run
  xmc_jax.combine  from finished runs to one that ranks better
  xmc_jax.Model    a trained run, ready to predict
  xmc_jax.XMCClassifier   an estimator of scikit-learn: fit, predict, predict_proba
  xmc_jax.UserError   base of DataError and ConfigError: errors that users can fix, shown as one line
"""

import importlib

__version__ = "0.1.0"

_ROOMS = ("config", "data", "export", "losses", "metrics", "models", "ops", "serve")
_NAMES = {  # and where they are
  "Model": "runs.model",
  "XMCClassifier": "estimator",
  "UserError": "errors",
  "combine": "training.combine",
  "default_config": "methods",
  "train": "training.train",
}


def __getattr__(name: str) -> object:
  if name in _ROOMS:
    return importlib.import_module(f"xmc_jax.{name}")
  if name in _NAMES:
    return getattr(importlib.import_module(f"xmc_jax.{_NAMES[name]}"), name)
  raise AttributeError(f"module 'xmc_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
  return sorted([*globals(), *_ROOMS, *_NAMES])
