"""PRIME's prototype network: a transformer block in NumPy, and the mean of what comes out."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import erf, softmax

from xmc_jax import models


def _layer_norm(x, parameters):
  centred = x - x.mean(-1, keepdims=True)
  scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
  return scaled * parameters["scale"] + parameters["bias"]


def test_the_network_is_a_post_norm_block_and_a_mean():
  network = models.PrototypeNetwork(ffn_width=7)
  rng = np.random.default_rng(0)
  vectors = rng.standard_normal((4, 3, 6))
  with jax.enable_x64(True):
    params = network.init(jax.random.key(0), jnp.asarray(vectors))
    params = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape), params)
    found = network.apply(params, jnp.asarray(vectors, jnp.float32))
  layer = params["params"]["layer"]
  dense = lambda x, part: x @ part["kernel"] + part["bias"]
  attention = layer["attention"]
  query, key, value = (dense(vectors, attention[name]) for name in ("query", "key", "value"))
  mixed = softmax(query @ key.transpose(0, 2, 1) / 6**0.5, axis=-1) @ value
  x = _layer_norm(vectors + dense(mixed, attention["output"]), layer["attention_layer_norm"])
  hidden = dense(x, layer["intermediate"])
  hidden = hidden * 0.5 * (1 + erf(hidden / 2**0.5))
  x = _layer_norm(x + dense(hidden, layer["output"]), layer["output_layer_norm"])
  np.testing.assert_allclose(found, x.mean(1), rtol=1e-4, atol=1e-4)


def test_dropout_acts_with_a_key_only():
  network, vectors = models.PrototypeNetwork(dropout=0.5), jnp.ones((2, 3, 4))
  params = network.init(jax.random.key(0), vectors)
  plain = network.apply(params, vectors)
  np.testing.assert_array_equal(plain, network.apply(params, vectors))
  assert np.any(plain != network.apply(params, vectors, jax.random.key(1)))
