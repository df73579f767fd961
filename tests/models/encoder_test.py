"""The transformer against Hugging Face's, and against itself under every option."""

from dataclasses import replace

import encoder_references
import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from encoder_references import MODERNBERT, compiled, random_params, random_texts, value_and_gradients

from xmc_jax.models import hf_names, layers
from xmc_jax.models.encoder import Encoder, EncoderSpec

SPEC = EncoderSpec("bert", 50, 16, 2, 2, 24, 20, num_types=2)


def _apply(encoder, ids, mask):
  return compiled(encoder)(random_params(SPEC), ids, mask)


def _loss_and_gradients(encoder, ids, mask):
  return value_and_gradients(encoder, random_params(SPEC), ids, mask)


@pytest.mark.parametrize("kind", ["distilbert", "xlm-roberta", pytest.param("bert", marks=pytest.mark.slow)])
def test_hidden_states_and_gradients_equal_hugging_face(kind):
  model, theirs = encoder_references.flax_model(kind)
  spec = hf_names.spec_from_config(model.config.to_dict(), "here")
  ids, mask = random_texts(vocab_size=97)

  def ours(tensors):
    return Encoder(spec).apply({"params": encoder_references.our_params(spec, tensors)}, ids, mask)

  def loss(hidden):
    return jnp.where(mask[..., None], jnp.sin(hidden + jnp.arange(32)), 0).sum() / mask.sum()

  tensors = encoder_references.to_torch_names(theirs)
  expected = jax.jit(lambda p: encoder_references.flax_hidden(model, p, ids, mask))(theirs)
  np.testing.assert_allclose(jax.jit(ours)(tensors)[mask], expected[mask], atol=1e-5)

  gradients = jax.jit(jax.grad(lambda t: loss(ours(t))))(tensors)
  theirs_gradients = jax.jit(jax.grad(lambda p: loss(encoder_references.flax_hidden(model, p, ids, mask))))(
    theirs
  )
  expected_gradients = encoder_references.to_torch_names(theirs_gradients)
  for name in hf_names.names(spec).values():
    np.testing.assert_allclose(gradients[name], expected_gradients[name], atol=1e-5, err_msg=name)


# From PyTorch's MPNetModel and ModernBertModel of transformers 5.17: columns 0 to 3 of tokens 0, 70 and 139
# of the first text, and of the gradient of the embeddings' gain.
MPNET = EncoderSpec("mpnet", 50, 16, 2, 2, 24, 140, 0, 1e-5, first_position=2, num_buckets=32)
MPNET_STATES = [
  [-0.72279, -1.06481, -0.78273, 0.70895],
  [0.6287, -0.35481, 1.30777, -0.00395],
  [0.18476, -0.93476, 1.61574, 1.31253],
]
MPNET_GRADIENT = [-6.6299, 17.5842, 11.9127, 19.7388]
MODERNBERT_STATES = [
  [0.0503, 0.37194, -1.23861, 0.19982],
  [0.51604, -1.68793, 1.07072, -1.20469],
  [-1.10381, 0.67376, -0.53006, 2.15558],
]
MODERNBERT_GRADIENT = [-52.1449, -56.0333, -33.2379, -43.0348]


@pytest.mark.slow
@pytest.mark.parametrize(
  ("spec", "states", "gradient"),
  [(MPNET, MPNET_STATES, MPNET_GRADIENT), (MODERNBERT, MODERNBERT_STATES, MODERNBERT_GRADIENT)],
  ids=["mpnet", "modernbert"],
)
def test_hidden_states_of_long_texts_equal_hugging_face(spec, states, gradient):
  ids, mask = random_texts(n=3, length=140)
  ids = np.maximum(ids, 2)  # MPNet's takes 1 for padding
  params = jax.tree.map(jnp.asarray, random_params(spec))
  hidden = Encoder(spec).apply({"params": params}, ids, mask)
  np.testing.assert_allclose(hidden[0, [0, 70, 139], :4], states, atol=1e-5)
  first = Encoder(spec, first_only=True).apply({"params": params}, ids, mask, num_places=int(mask.sum()))
  np.testing.assert_allclose(first[:, 0], hidden[:, 0], atol=1e-5)
  dropping = Encoder(spec, attention_dropout=1e-9).apply({"params": params}, ids, mask, jax.random.key(0))
  np.testing.assert_allclose(dropping[mask], hidden[mask], atol=1e-5)
  for encoder, num_places in ((Encoder(spec), None), (Encoder(spec, remat=True), int(mask.sum()))):
    _, found = value_and_gradients(encoder, params, ids, mask, None, num_places)
    np.testing.assert_allclose(found["embeddings"]["layer_norm"]["scale"][:4], gradient, rtol=1e-4)
  shape = jax.export.symbolic_shape("n, t")  # an export is for any number of texts and tokens
  ids, mask = (jax.ShapeDtypeStruct(shape, dtype) for dtype in (jnp.int32, bool))
  exported = jax.export.export(jax.jit(lambda ids, mask: Encoder(spec).apply({"params": params}, ids, mask)))
  assert exported(ids, mask).out_avals[0].shape == (*shape, 16)


@pytest.mark.slow
@pytest.mark.parametrize("native", [True, False])
def test_bfloat16_is_close_to_float32(native, monkeypatch):
  # Eight simulated devices switch native bfloat16 products off; one device is enough here.
  monkeypatch.setattr(layers.hardware, "multiplies_bfloat16", lambda: native)
  ids, mask = random_texts()
  exact, exact_gradients = _loss_and_gradients(Encoder(SPEC), ids, mask)
  rounded, gradients = _loss_and_gradients(Encoder(SPEC, jnp.bfloat16), ids, mask)
  np.testing.assert_allclose(rounded, exact, rtol=0.05, atol=0.5)
  for a, b in zip(jax.tree.leaves(gradients), jax.tree.leaves(exact_gradients)):
    assert a.dtype == jnp.float32
    assert np.linalg.norm(a - b) <= 0.05 * np.linalg.norm(b) + 0.02


@pytest.mark.slow
def test_native_bfloat16_products_survive_transposes_vmap_and_scan(monkeypatch):
  monkeypatch.setattr(layers.hardware, "multiplies_bfloat16", lambda: True)
  x, kernel = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(6, 4, 8), (8, 12)]))

  def loss(x, kernel):
    hidden = jnp.tanh(layers.matmul(x, kernel, jnp.bfloat16))
    return jnp.square(layers.matmul(hidden, kernel.T, jnp.bfloat16)).sum()

  def scanned(kernel):
    return jax.lax.scan(lambda total, row: (total + jax.checkpoint(loss)(row, kernel), None), 0.0, x)[0]

  expected = jax.grad(loss, 1)(x, kernel)
  for actual in (
    jax.jit(jax.grad(loss, 1))(x, kernel),
    jax.jit(jax.vmap(jax.grad(loss, 1), in_axes=(0, None)))(x, kernel).sum(axis=0),
    jax.jit(jax.grad(scanned))(kernel),
  ):
    np.testing.assert_allclose(actual, expected, rtol=0.02, atol=0.5)


def test_frozen_layers_are_left_out_of_the_backward_pass():
  ids, mask = random_texts()

  def num_products(encoder):
    def loss(params):
      return encoder.apply({"params": params}, ids, mask).sum()

    return str(jax.make_jaxpr(jax.grad(loss))(random_params(SPEC))).count("dot_general")

  assert num_products(Encoder(SPEC, num_frozen_layers=1)) < num_products(Encoder(SPEC)) - 10


def test_first_only_is_the_first_real_row_of_all():
  ids, mask = random_texts()
  mask[0, :3] = False
  whole = _apply(Encoder(SPEC), ids, mask)
  first = _apply(Encoder(SPEC, first_only=True), ids, mask)
  assert first.shape == (5, 1, 16)
  np.testing.assert_allclose(first[0, 0], whole[0, 3], atol=1e-5)
  np.testing.assert_allclose(first[1:, 0], whole[1:, 0], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_rows_without_tokens_are_finite(dtype):
  ids, mask = random_texts()
  mask[2] = False
  encoder = Encoder(SPEC, dtype)
  assert np.isfinite(np.asarray(_apply(encoder, ids, mask), np.float32)).all()
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(_loss_and_gradients(encoder, ids, mask)))


@pytest.mark.parametrize(
  "spec",
  [SPEC, MODERNBERT, *(replace(MODERNBERT, **{bias: True}) for bias in ("norm_bias", "attention_bias"))],
)
def test_parameter_paths_are_those_of_the_documentation(spec):
  shapes = jax.eval_shape(Encoder(spec).init, jax.random.key(0), *random_texts())["params"]
  paths = {path: leaf.shape for path, leaf in flax.traverse_util.flatten_dict(shapes, sep="/").items()}
  assert paths == {path: hf_names.shape(path, spec) for path in hf_names.names(spec)}
  norm = "intermediate_layer_norm" if spec.pre_norm else "output_layer_norm"
  assert {"embeddings/word", "layer_1/attention/query/kernel", f"layer_0/{norm}/scale"} <= {*paths}
  for path in paths:  # what the optimiser's decay mask goes by
    assert path.endswith(("kernel", "word", "position", "type", "bias")) or "layer_norm" in path
