"""PRIME's prototype network: a transformer block in NumPy, and the mean of what comes out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf, softmax

from xmc_jax import models
from xmc_jax.models import prototype

# Where a post-norm layer has dropout, in order: attention weights, attention's output, between the two
# matrices of the feed-forward part, and its output; and the shapes there, of 4 labels with 3 vectors each.
SITES = {"weights": (4, 3, 3), "attended": (4, 3, 6), "hidden": (4, 3, 7), "output": (4, 3, 6)}


def _layer_norm(x, parameters):
  centred = x - x.mean(-1, keepdims=True)
  scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
  return scaled * parameters["scale"] + parameters["bias"]


def _reference(vectors, layer, kept=None):
  """The network in float64; `kept` are factors by the sites of dropout."""
  kept = dict.fromkeys(SITES, 1.0) | (kept or {})
  dense = lambda x, part: x @ part["kernel"] + part["bias"]
  attention = layer["attention"]
  query, key, value = (dense(vectors, attention[name]) for name in ("query", "key", "value"))
  mixed = kept["weights"] * softmax(query @ key.transpose(0, 2, 1) / 6**0.5, axis=-1) @ value
  attended = kept["attended"] * dense(mixed, attention["output"])
  x = _layer_norm(vectors + attended, layer["attention_layer_norm"])
  hidden = dense(x, layer["intermediate"])
  hidden = kept["hidden"] * hidden * 0.5 * (1 + erf(hidden / 2**0.5))
  x = _layer_norm(x + kept["output"] * dense(hidden, layer["output"]), layer["output_layer_norm"])
  return x.mean(1)


def _example(rate=0.1):
  """`(network, params, vectors)`, the latter float64."""
  network = models.PrototypeNetwork(ffn_width=7, dropout=rate)
  rng = np.random.default_rng(0)
  vectors = rng.standard_normal((4, 3, 6))
  params = network.init(jax.random.key(0), jnp.asarray(vectors, jnp.float32))
  with jax.enable_x64(True):
    params = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape), params)
  return network, params, vectors


def test_the_network_is_a_post_norm_block_and_a_mean():
  network, params, vectors = _example()
  with jax.enable_x64(True):
    found = network.apply(params, jnp.asarray(vectors, jnp.float32))
  np.testing.assert_allclose(found, _reference(vectors, params["params"]["layer"]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sites", [*([site] for site in SITES), list(SITES)], ids="-".join)
def test_dropout_acts_at_each_of_four_sites(sites, monkeypatch):
  """Of entries that are kept or not by the test's own choice: at one site alone, and at all of them."""
  network, params, vectors = _example(0.25)
  rng = np.random.default_rng(1)
  kept = {site: (rng.random(shape) < 0.75) / 0.75 for site, shape in SITES.items() if site in sites}
  called, keys = iter(SITES), []

  def drop(x, rate, key):
    site = next(called)
    assert (x.shape, rate) == (SITES[site], 0.25)
    keys.append(tuple(jax.random.key_data(key).tolist()))
    return x * kept[site].astype(x.dtype) if site in kept else x

  monkeypatch.setattr(prototype, "dropout", drop)
  with jax.enable_x64(True):
    found = network.apply(params, jnp.asarray(vectors, jnp.float32), jax.random.key(5))
  assert next(called, None) is None and len(set(keys)) == len(SITES)  # noise of its own at each
  layer = params["params"]["layer"]
  expected = _reference(vectors, layer, kept)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
  assert np.abs(expected - _reference(vectors, layer)).max() > 0.1


def test_dropout_acts_with_a_key_and_a_rate_only():
  network, vectors = models.PrototypeNetwork(dropout=0.5), jnp.ones((2, 3, 4))
  params = network.init(jax.random.key(0), vectors)
  plain = network.apply(params, vectors)
  np.testing.assert_array_equal(plain, network.apply(params, vectors))
  one, other = (network.apply(params, vectors, jax.random.key(seed)) for seed in (1, 2))
  assert np.any(plain != one) and np.any(one != other)
  np.testing.assert_array_equal(one, network.apply(params, vectors, jax.random.key(1)))
  without = models.PrototypeNetwork(dropout=0.0)
  np.testing.assert_array_equal(plain, without.apply(params, vectors, jax.random.key(1)))
