"""xmc_jax: extreme multi-label text classification in JAX.

The public rooms are loaded on first use, so that `import xmc_jax`, `--help`
and a config error cost no JAX start-up:

  xmc_jax.losses   softmax, decoupled_softmax, binary, ...
  xmc_jax.ops      top_k, ...
  xmc_jax.metrics  evaluate, inverse_propensity, ...
  xmc_jax.data     load, prepare, ...
  xmc_jax.models   load_encoder, ...
  xmc_jax.Model    a trained run, ready to predict
"""

import importlib

__version__ = "0.1.0"

_ROOMS = ("data", "losses", "metrics", "models", "ops")


def __getattr__(name):
  if name in _ROOMS:
    return importlib.import_module(f"xmc_jax.{name}")
  if name == "Model":
    return importlib.import_module("xmc_jax.predict").Model
  raise AttributeError(f"module 'xmc_jax' has no attribute {name!r}")


def __dir__():
  return sorted([*globals(), *_ROOMS, "Model"])
