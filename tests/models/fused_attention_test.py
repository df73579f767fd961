"""cuDNN's attention, with XLA's in its place: what it is told of the padding, and when it is trusted."""

import functools
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import each_case

from xmc_jax import models
from xmc_jax.models import hardware
from xmc_jax.models.encoder import Encoder, EncoderSpec
from xmc_jax.types import Tokens

SPEC = EncoderSpec("distilbert", 50, 16, 2, 2, 24, 20)
LENGTHS = np.array([8, 1, 0, 5], np.int32)
IDS = np.random.default_rng(0).integers(0, 50, (4, 8)).astype(np.int32)
MASK = np.arange(8) < LENGTHS[:, None]
XLA = jax.nn.dot_product_attention


@pytest.fixture
def told(monkeypatch):
  """Lets XLA compute what is asked of cuDNN; returns the names of what each call gave."""
  calls = []

  def attend(*inputs, implementation=None, **keys):
    if implementation == "cudnn":
      calls.append(*keys)
    return XLA(*inputs, **keys)

  monkeypatch.setattr(jax.nn, "dot_product_attention", attend)
  return calls


def _value_and_gradient(implementation, ids, mask, **options):
  encoder = Encoder(SPEC, implementation=implementation)
  params = Encoder(SPEC).init(jax.random.key(1), IDS, MASK)

  def loss(params):
    hidden = encoder.apply(params, ids, mask, **options)
    return jnp.where(mask[..., None], jnp.sin(hidden + jnp.arange(16)), 0).sum(), hidden

  (_, hidden), gradient = jax.value_and_grad(loss, has_aux=True)(params)
  return hidden[mask], gradient


CASES = {
  "by lengths": ("cudnn_by_lengths", MASK, {"padded_last": True}, "key_value_seq_lengths"),
  "by mask": ("cudnn_by_mask", MASK, {"padded_last": True}, "mask"),
  "any mask": ("cudnn_by_lengths", MASK[:, ::-1], {}, "mask"),
}


@each_case("name", list(CASES))
def test_lengths_say_what_the_mask_says(name, told):
  implementation, mask, options, key = CASES[name]
  found = _value_and_gradient(implementation, IDS, mask, **options)
  assert told[-SPEC.num_layers :] == [key] * SPEC.num_layers
  expected = _value_and_gradient(None, IDS, mask)
  jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), found, expected)


def test_a_step_tells_lengths_and_a_user_any_mask(told, monkeypatch, tmp_path):
  monkeypatch.setattr(hardware, "choose_attention", lambda dtype, head_dim: "cudnn_by_lengths")
  sizes = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "vocab_size": 50}
  facts = {"model_type": "distilbert", "max_position_embeddings": 20, **sizes}
  (tmp_path / "config.json").write_text(json.dumps(facts))
  settings = {"name": str(tmp_path), "dtype": "float32", "pretrained": False, "pooling": "mean"}
  embedder = models.build(types.SimpleNamespace(**settings))
  params = embedder.init(jax.random.key(0))
  told.clear()
  found = embedder.embed(params, Tokens(IDS, LENGTHS))
  assert told == ["key_value_seq_lengths"] * 2
  told.clear()
  np.testing.assert_allclose(embedder.apply(params, IDS, MASK), found, atol=1e-5)
  assert told == ["mask"] * 2


def _ignores_lengths(*inputs, implementation=None, key_value_seq_lengths=None, **keys):
  return XLA(*inputs, **keys)


def _refuses_lengths(*inputs, implementation=None, **keys):
  if "key_value_seq_lengths" in keys:
    raise RuntimeError("not supported")
  return XLA(*inputs, **keys)


def _refuses_all(*inputs, implementation=None, **keys):
  if implementation == "cudnn":
    raise RuntimeError("no cuDNN")
  return XLA(*inputs, **keys)


def _works(*inputs, implementation=None, **keys):
  return XLA(*inputs, **keys)


def _confuses_long_texts(*inputs, implementation=None, key_value_seq_lengths=None, **keys):
  """As a kernel that reads only the first block of keys."""
  if key_value_seq_lengths is not None:
    keys["key_value_seq_lengths"] = jnp.minimum(key_value_seq_lengths, 64)
  return XLA(*inputs, **keys)


KERNELS = {
  _works: "cudnn_by_lengths",
  _ignores_lengths: "cudnn_by_mask",  # a wrong result, no error
  _confuses_long_texts: "cudnn_by_mask",
  _refuses_lengths: "cudnn_by_mask",
  _refuses_all: None,
}


@each_case("kernel", list(KERNELS))
def test_a_kernel_is_trusted_after_it_was_tried(kernel, monkeypatch):
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  monkeypatch.setattr(jax, "device_count", lambda: 1)
  monkeypatch.setattr(jax.nn, "dot_product_attention", kernel)
  for tried in (hardware._cudnn_runs, hardware._cudnn_takes_lengths):
    tried.cache_clear()
  try:
    assert hardware.choose_attention(jnp.bfloat16, 8) == KERNELS[kernel]
    assert hardware.choose_attention(jnp.float32, 8) is None
    monkeypatch.setattr(jax, "device_count", lambda: 2)
    assert hardware.choose_attention(jnp.bfloat16, 8) == (KERNELS[kernel] and "cudnn_by_mask")
  finally:
    for tried in (hardware._cudnn_runs, hardware._cudnn_takes_lengths):
      tried.cache_clear()
