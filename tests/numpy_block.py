"""PRIME's block in NumPy: one layer of PyTorch's TransformerEncoder, post-norm, with a single head."""

import numpy as np
from scipy.special import erf, softmax


def block(vectors, layer, drop=lambda values, site: values):
  """Returns `[n, T, D]` of `[n, T, D]`; `drop(values, site)` is what dropout does at sites 0 to 3."""
  dense = lambda x, part: x @ part["kernel"] + part["bias"]
  query, key, value = (dense(vectors, layer["attention"][name]) for name in ("query", "key", "value"))
  weights = softmax(query @ key.transpose(0, 2, 1) / vectors.shape[-1] ** 0.5, axis=-1)
  mixed = drop(weights[:, None], 0)[:, 0] @ value
  x = vectors + drop(dense(mixed, layer["attention"]["output"]), 1)
  x = _layer_norm(x, layer["attention_layer_norm"])
  hidden = dense(x, layer["intermediate"])
  hidden = hidden * 0.5 * (1 + erf(hidden / 2**0.5))
  return _layer_norm(x + drop(dense(drop(hidden, 2), layer["output"]), 3), layer["output_layer_norm"])


def _layer_norm(x, parameters):
  centred = x - x.mean(-1, keepdims=True)
  scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
  return scaled * parameters["scale"] + parameters["bias"]
