"""The examples in docstrings run, and say what they show."""

import doctest
import importlib
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).parents[2] / "xmc_jax"
# Examples of these need a trained run or files of the user's; the tests of their rooms show that they work.
_STORIES = {
  "xmc_jax.runs.model",
  "xmc_jax.training.combine",
  "xmc_jax.training.train",
  "xmc_jax.data.in_memory",
  "xmc_jax.estimator.classifier",
  "xmc_jax.export.exported",
  "xmc_jax.models.loading",
  "xmc_jax.serve.api",
}
MODULES = [
  name
  for path in sorted(PACKAGE.rglob("*.py"))
  if ">>>" in path.read_text(encoding="utf-8")
  and (name := ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)) not in _STORIES
]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
  import jax
  import jax.numpy as jnp
  import numpy as np
  import scipy.sparse as sp

  import xmc_jax

  module = importlib.import_module(name)
  known = {"jax": jax, "jnp": jnp, "np": np, "sp": sp, "xmc_jax": xmc_jax} | vars(module)
  flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
  failed, tried = doctest.testmod(module, extraglobs=known, optionflags=flags)
  assert tried and not failed
