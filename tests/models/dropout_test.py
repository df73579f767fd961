"""Dropout inside the transformer: where it acts, how much it drops, and that a key settles it."""

import itertools

import encoder_references
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from encoder_references import assert_close, compiled, factors, random_params, value_and_gradients
from scipy.special import softmax

from xmc_jax.models import attention, fused_attention, hf_names
from xmc_jax.models import encoder as encoders
from xmc_jax.models.attention import attend_with_dropout
from xmc_jax.models.encoder import Encoder, EncoderSpec

SPEC = EncoderSpec("bert", 50, 16, 2, 2, 24, 20, num_types=2)
RATES = {"hidden": {"dropout": 0.3}, "attention": {"attention_dropout": 0.3}}
RATES["both"] = RATES["hidden"] | RATES["attention"]
KEY = jax.random.key(5)
PARAMS = random_params(SPEC, 0.3, seed=1)


def _inputs(vocab_size=50):
  rng = np.random.default_rng(0)
  lengths = np.array([8, 1, 5, 3])
  return rng.integers(0, vocab_size, (4, 8)).astype(np.int32), np.arange(8) < lengths[:, None]


def _apply(encoder, key=None):
  return np.asarray(compiled(encoder)(PARAMS, *_inputs(), key), np.float64)


def _value_and_gradient(encoder, num_places=None):
  return value_and_gradients(encoder, PARAMS, *_inputs(), KEY, num_places)


@pytest.mark.parametrize(
  "kind, attention_rate, num_sites",
  [pytest.param("distilbert", 0.1, 5, marks=pytest.mark.slow), ("bert", 0.0, 5)],
)
def test_sites_are_those_of_hugging_face(kind, attention_rate, num_sites, monkeypatch):
  """Every dropout of both, replaced by a given factor for each entry, in the order in which they come.

  Two blocks: DistilBERT has the embeddings and two sites a block (weights, output), and so has BERT without
  its attention weights (attention's output, output). Flax's BERT drops weights in a function of its own.
  """
  names = {"distilbert": ("dropout", "attention_dropout"),
           "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob")}[kind]  # fmt: skip
  model, theirs = encoder_references.flax_model(kind, **dict(zip(names, (0.1, attention_rate))))
  spec = hf_names.spec_from_config(model.config.to_dict(), "here")
  ids, mask = _inputs(vocab_size=97)
  numbers = itertools.count()

  def replaced(next_function, args, kwargs, context):
    if isinstance(context.module, nn.Dropout):
      return args[0] * factors(next(numbers), args[0].shape) if context.module.rate else args[0]
    return next_function(*args, **kwargs)

  with nn.intercept_methods(replaced):
    inputs = encoder_references._inputs(model, ids, mask)
    settings = {"deterministic": False, "return_dict": False, "rngs": {"dropout": KEY}}
    expected = model.module.apply({"params": theirs}, *inputs, **settings)[0]
  assert next(numbers) == num_sites

  numbers = itertools.count()
  for module in (encoders, attention):
    monkeypatch.setattr(
      module, "dropout", lambda x, rate, key: x * factors(next(numbers), x.shape) if rate else x
    )
  params = encoder_references.our_params(spec, encoder_references.to_torch_names(theirs))
  encoder = Encoder(spec, dropout=0.1, attention_dropout=attention_rate)
  found = encoder.apply({"params": params}, ids, mask, KEY)
  assert next(numbers) == num_sites
  np.testing.assert_allclose(found[mask], expected[mask], atol=1e-5)


def test_weights_are_zero_or_scaled_and_the_share_is_the_rate():
  """Values that are the identity give the weights themselves: as wide as there are tokens."""
  query, key = np.random.default_rng(2).normal(size=(2, 3, 12, 2, 12)).astype(np.float32)
  mask = np.repeat((np.arange(12) < np.array([[12], [7], [1]]))[:, None, None], 12, axis=2)
  value = np.broadcast_to(np.eye(12, dtype=np.float32)[:, None], (3, 12, 2, 12))
  keys = jax.random.split(KEY, 200)
  found = jax.vmap(lambda one: attend_with_dropout(query, key, value, mask, 0.1, one))(keys)
  found = np.moveaxis(np.asarray(found), 3, 2)  # [keys, n, H, S, T]
  scores = np.einsum("nshd,nthd->nhst", query.astype(float), key.astype(float)) / 12**0.5
  expected = np.broadcast_to(softmax(np.where(mask, scores, -np.inf), axis=-1), found.shape)
  kept = found > 0
  np.testing.assert_allclose(found[kept], expected[kept] / 0.9, rtol=1e-4)
  real = expected > 0
  assert not kept[~real].any()
  # 200 keys of 480 weights: the share's standard deviation is below 0.001.
  assert np.mean(~kept[real]) == pytest.approx(0.1, abs=0.005)
  assert not np.array_equal(kept[:, :, 0], kept[:, :, 1])  # heads drop apart
  assert not np.array_equal(kept[:, :, :, 0], kept[:, :, :, 1])  # and so do queries


def test_no_rate_or_no_key_is_no_dropout_to_the_bit():
  plain = _apply(Encoder(SPEC))
  np.testing.assert_array_equal(_apply(Encoder(SPEC), KEY), plain)
  np.testing.assert_array_equal(_apply(Encoder(SPEC, **RATES["both"])), plain)


@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("name", RATES)
def test_a_key_settles_what_is_dropped(name, first_only):
  encoder = Encoder(SPEC, first_only=first_only, **RATES[name])
  one, again, other = (_apply(encoder, jax.random.key(number)) for number in (1, 1, 2))
  np.testing.assert_array_equal(one, again)
  assert np.isfinite(one).all() and not np.allclose(one, other)
  assert not np.allclose(one, _apply(Encoder(SPEC, first_only=first_only)))


def test_the_two_rates_are_apart():
  """Attention weights have a key of their own: hidden masks are the same with and without it."""
  hidden, both = (_apply(Encoder(SPEC, **RATES[name]), KEY) for name in ("hidden", "both"))
  nothing = _apply(Encoder(SPEC, dropout=0.3, attention_dropout=1e-9), KEY)  # as close to 0 as bits can say
  assert not np.allclose(hidden, both)
  np.testing.assert_allclose(nothing, hidden, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", RATES)
def test_remat_drops_the_same_twice(name):
  again, once = (_value_and_gradient(Encoder(SPEC, remat=remat, **RATES[name])) for remat in (True, False))
  assert_close(again, once, 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"first_only": True}, {"remat": True}])
def test_packed_texts_drop_the_same_attention_weights(options):
  """Weights are laid out with padding either way; hidden states are not, and draw other masks."""
  encoder = Encoder(SPEC, attention_dropout=0.3, **options)
  assert_close(_value_and_gradient(encoder, num_places=20), _value_and_gradient(encoder), 2e-5)


@pytest.mark.slow
def test_packed_hidden_states_are_dropped():
  encoder, (ids, mask) = Encoder(SPEC, dropout=0.3), _inputs()
  plain, packed = (encoder.apply({"params": PARAMS}, ids, mask, key, 20) for key in (None, KEY))
  assert np.isfinite(packed).all() and not np.allclose(packed[mask], plain[mask])


def test_fused_attention_is_left_aside_while_weights_are_dropped(monkeypatch):
  """cuDNN's kernel fails on a CPU: a pass that drops weights must not ask for it."""
  monkeypatch.setattr(fused_attention, "is_faster", lambda *_: True)
  fused = Encoder(SPEC, implementation="cudnn_by_mask", attention_dropout=0.3)
  plain = Encoder(SPEC, attention_dropout=0.3)
  np.testing.assert_array_equal(_apply(fused, KEY), _apply(plain, KEY))
  with pytest.raises(Exception, match="cuDNN"):
    _apply(fused)


def test_bfloat16_drops_the_same_weights():
  exact, rounded = (_apply(Encoder(SPEC, dtype, attention_dropout=0.3), KEY)
                    for dtype in (jnp.float32, jnp.bfloat16))  # fmt: skip
  np.testing.assert_allclose(rounded, exact, atol=0.1)
