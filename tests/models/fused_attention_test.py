"""cuDNN's attention, with XLA's in its place: what it is told of padding, when it is trusted and taken."""

import functools
import types
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_runs

from xmc_jax import models
from xmc_jax.models import fused_attention
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
  monkeypatch.setattr(fused_attention, "is_faster", lambda *_: True)
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


@pytest.mark.parametrize("name", list(CASES))
def test_lengths_say_what_the_mask_says(name, told):
  implementation, mask, options, key = CASES[name]
  found = _value_and_gradient(implementation, IDS, mask, **options)
  assert told[-SPEC.num_layers :] == [key] * SPEC.num_layers
  expected = _value_and_gradient(None, IDS, mask)
  jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), found, expected)


def test_a_window_is_told_as_a_mask_with_a_key_for_padding_too(told, monkeypatch):
  attend = jax.nn.dot_product_attention

  def checked(*inputs, **keys):
    assert keys.get("mask", MASK[:1]).any(axis=-1).all()
    return attend(*inputs, **keys)

  monkeypatch.setattr(jax.nn, "dot_product_attention", checked)
  spec = replace(SPEC, rope_theta=1e4, local_rope_theta=1e4, local_attention=4, global_every=2)
  encoder = Encoder(spec, implementation="cudnn_by_lengths")
  params = Encoder(spec).init(jax.random.key(1), IDS, MASK)
  found = encoder.apply(params, IDS, MASK, padded_last=True)
  assert told == ["key_value_seq_lengths", "mask"]
  np.testing.assert_allclose(found[MASK], Encoder(spec).apply(params, IDS, MASK)[MASK], atol=1e-5)


def test_a_step_tells_lengths_and_a_user_any_mask(told, monkeypatch, tmp_path):
  monkeypatch.setattr(fused_attention, "choose_attention", lambda dtype, head_dim: "cudnn_by_lengths")
  folder = tiny_runs.tiny_bert(tmp_path)
  embedder = models.build(types.SimpleNamespace(name=str(folder), dtype="float32", pooling="mean"))
  params = embedder.init(jax.random.key(0))
  told.clear()
  found = embedder.embed(params, Tokens(IDS, LENGTHS))
  assert told == ["key_value_seq_lengths"]
  told.clear()
  np.testing.assert_allclose(embedder.apply(params, IDS, MASK), found, atol=1e-5)
  assert told == ["mask"]


def _kernel(cudnn=XLA, xla=XLA):
  """Returns attention by `cudnn` where cuDNN's is asked for, else by `xla`."""

  def attend(*inputs, implementation=None, **keys):
    return (cudnn if implementation == "cudnn" else xla)(*inputs, **keys)

  return attend


def _ignores_lengths(*inputs, key_value_seq_lengths=None, **keys):
  return XLA(*inputs, **keys)


def _confuses_long_texts(*inputs, key_value_seq_lengths=None, **keys):
  """As a kernel that reads only the first block of keys."""
  if key_value_seq_lengths is not None:
    keys["key_value_seq_lengths"] = jnp.minimum(key_value_seq_lengths, 64)
  return XLA(*inputs, **keys)


def _refuses_lengths(*inputs, mask):
  return XLA(*inputs, mask=mask)


def _refuses_masks(*inputs, key_value_seq_lengths):
  return XLA(*inputs, key_value_seq_lengths=key_value_seq_lengths)


def _refuses_all(*_, **__):
  raise RuntimeError("no cuDNN")


KERNELS = {
  XLA: "cudnn_by_lengths",
  _ignores_lengths: "cudnn_by_mask",  # a wrong result, no error
  _confuses_long_texts: "cudnn_by_mask",
  _refuses_lengths: "cudnn_by_mask",
  _refuses_all: None,
}


def _replace_attention(monkeypatch, kernel):
  """Lets `kernel` compute attention for one test, which remembers its own trials."""
  monkeypatch.setattr(jax.nn, "dot_product_attention", kernel)
  monkeypatch.setattr(fused_attention, "_TIMED_TOKENS", 128)
  for name in ("_cudnn_runs", "_cudnn_takes_lengths", "_compare"):
    trial = getattr(fused_attention, name).__wrapped__
    monkeypatch.setattr(fused_attention, name, functools.cache(trial))


@pytest.mark.parametrize("kernel", list(KERNELS))
def test_a_kernel_is_trusted_after_it_was_tried(kernel, monkeypatch):
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  monkeypatch.setattr(jax, "device_count", lambda: 1)
  _replace_attention(monkeypatch, _kernel(kernel))
  assert fused_attention.choose_attention(jnp.bfloat16, 8) == KERNELS[kernel]
  assert fused_attention.choose_attention(jnp.float32, 8) is None
  monkeypatch.setattr(jax, "device_count", lambda: 2)
  assert fused_attention.choose_attention(jnp.bfloat16, 8) == (KERNELS[kernel] and "cudnn_by_mask")


def _slow(query, *others, **keys):
  again = lambda _, mixed: XLA(query + 0 * mixed, *others, **keys)
  return jax.lax.fori_loop(0, 20, again, query)


def _twice(*inputs, **keys):
  return 2 * XLA(*inputs, **keys)


SLOW_CUDNN, SLOW_XLA = _kernel(cudnn=_slow), _kernel(xla=_slow)
# One that is wrong and faster, too: only the comparison can tell.
FASTER = {SLOW_XLA: True, SLOW_CUDNN: False, _kernel(_twice, _slow): False, _kernel(_refuses_all): False}


@pytest.mark.parametrize("kernel", list(FASTER))
def test_the_faster_attention_is_taken(kernel, monkeypatch):
  _replace_attention(monkeypatch, kernel)
  assert fused_attention.is_faster("cudnn_by_lengths", 2, 8, 12) == FASTER[kernel]


def test_a_user_s_mask_is_tried_as_a_mask(monkeypatch):
  """Without lengths cuDNN would get a bias, which it takes at fewer widths: at those it is not asked."""
  _replace_attention(monkeypatch, _kernel(_refuses_masks, _slow))
  params = Encoder(SPEC).init(jax.random.key(1), IDS, MASK)
  found = Encoder(SPEC, implementation="cudnn_by_lengths").apply(params, IDS[:, :7], MASK[:, :7])
  np.testing.assert_allclose(found, Encoder(SPEC).apply(params, IDS[:, :7], MASK[:, :7]), atol=1e-5)


def test_nothing_is_timed_for_long_texts_or_where_programs_must_be_equal(monkeypatch):
  _replace_attention(monkeypatch, SLOW_CUDNN)
  long = {128: True, 132: False}
  assert {width: fused_attention.is_faster("cudnn_by_mask", 2, 8, width) for width in long} == long
  by_width = {8: True, 12: False, 24: True}
  with monkeypatch.context() as several:
    several.setattr(jax, "process_count", lambda: 2)
    assert {width: fused_attention.is_faster("cudnn_by_mask", 2, 8, width) for width in by_width} == by_width
  monkeypatch.setenv("XLA_FLAGS", "--a=1 --xla_gpu_deterministic_ops=true")
  assert {width: fused_attention.is_faster("cudnn_by_mask", 2, 8, width) for width in by_width} == by_width


@pytest.mark.parametrize("kernel", [SLOW_XLA, SLOW_CUDNN])
def test_an_encoder_takes_the_faster_one_while_it_is_traced(kernel, monkeypatch):
  """The trial runs while `jit`, `grad`, `scan` and `shard_map` trace the encoder."""
  params = Encoder(SPEC).init(jax.random.key(1), IDS, MASK)
  mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
  taken = []

  def attend(*inputs, implementation=None, **keys):
    if isinstance(inputs[0], jax.core.Tracer) and inputs[0].shape[0] in IDS.shape:
      taken.append(implementation)
    return kernel(*inputs, implementation=implementation, **keys)

  _replace_attention(monkeypatch, attend)

  def loss(params, implementation):
    encoder = Encoder(SPEC, implementation=implementation, remat=True)
    in_parts = jax.shard_map(
      lambda ids, mask: encoder.apply(params, ids, mask, padded_last=True),
      mesh=mesh,
      in_specs=(jax.P("data"), jax.P("data")),
      out_specs=jax.P("data"),
      check_vma=False,
    )
    hidden = jax.lax.scan(lambda _, some: (None, in_parts(*some)), None, (IDS[None], MASK[None]))[1]
    return jnp.where(MASK[None, ..., None], jnp.sin(hidden), 0).sum()

  found = jax.jit(jax.value_and_grad(loss), static_argnums=1)(params, "cudnn_by_lengths")
  assert set(taken) == {"cudnn" if kernel is SLOW_XLA else None}
  monkeypatch.setattr(jax.nn, "dot_product_attention", XLA)
  expected = jax.jit(jax.value_and_grad(loss), static_argnums=1)(params, None)
  jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), found, expected)
