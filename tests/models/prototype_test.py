"""PRIME's prototype network: a transformer block in NumPy, and the mean of what comes out."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from encoder_references import factors
from numpy_block import block

from xmc_jax import models
from xmc_jax.models import attention
from xmc_jax.models import encoder as encoders


def test_the_network_is_a_post_norm_block_and_a_mean(monkeypatch):
  """With a key it drops at the four sites of PyTorch's TransformerEncoderLayer; prime_test has it without."""
  network, bare = (models.PrototypeNetwork(ffn_width=7, dropout=rate) for rate in (0.2, 0))
  sites = itertools.count()
  dropped = lambda x, rate, key: x * factors(next(sites), x.shape) if rate and key is not None else x
  for module in (encoders, attention):
    monkeypatch.setattr(module, "dropout", dropped)
  rng = np.random.default_rng(0)
  vectors = rng.standard_normal((4, 3, 6))
  with jax.enable_x64(True):
    params = bare.init(jax.random.key(0), jnp.asarray(vectors))
    params = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape), params)
    found = network.apply(params, jnp.asarray(vectors, jnp.float32), jax.random.key(1))
  assert next(sites) == 4
  drop = lambda x, site: x * factors(site, x.shape)
  expected = block(vectors, params["params"]["layer"], drop).mean(1)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
