"""Products of bfloat16 parts: that a loss asks a GPU for them, and a CPU multiplies in float32."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xmc_jax import ops
from xmc_jax.ops import precision


@pytest.mark.parametrize("name", precision.NAMES)
def test_a_cpu_multiplies_in_float32(name):
  rng = np.random.default_rng(1)
  queries, labels = (jnp.asarray(rng.normal(size=(n, 8)), jnp.float32) for n in (5, 9))
  loss = functools.partial(ops.streaming_loss, "softmax", positives=jnp.zeros((5, 1), int), chunk=4)
  of = lambda name: jax.value_and_grad(lambda q: loss(q, labels, precision=name).sum())(queries)
  for found, expected in zip(of(name), of("float32"), strict=True):
    np.testing.assert_array_equal(found, expected)


def test_an_accelerator_is_asked_for_the_products_that_the_name_says(monkeypatch):
  """In the program, forward and backward: four products, of scores twice, of each gradient once."""
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  shaped = jax.ShapeDtypeStruct((16, 8), jnp.float32)

  def total(queries, labels, name):
    return ops.streaming_loss(
      "softmax", queries, labels, jnp.zeros((16, 1), int), chunk=8, precision=name
    ).sum()

  for name, wanted in (("auto", "BF16_BF16_F32_X3"), ("bf16x6", "BF16_BF16_F32_X6"), ("float32", "HIGHEST")):
    made = str(jax.make_jaxpr(jax.grad(functools.partial(total, name=name), (0, 1)))(shaped, shaped))
    assert made.count("dot_general[") == 4 == made.count(wanted) // (2 if name == "float32" else 1)


@pytest.mark.parametrize("keeps_scores", [True, False])
def test_a_product_with_a_single_row_or_column_is_plain_float32(monkeypatch, keeps_scores):
  """17 labels in chunks of 8 leave one over; XLA for a GPU refuses to compute its products in parts."""
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  shaped = jax.ShapeDtypeStruct((17, 8), jnp.float32)

  def total(queries, labels):
    positives = jnp.zeros((17, 1), int)
    settings = {"chunk": 8, "precision": "bf16x3", "keeps_scores": keeps_scores}
    return ops.streaming_loss("softmax", queries, labels, positives, **settings).sum()

  text = jax.jit(jax.value_and_grad(total, argnums=(0, 1))).lower(shaped, shaped).as_text()
  products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
  single = [line for line in products if "tensor<17x1x" in line or "tensor<1x8x" in line]
  assert len(single) == (2 if keeps_scores else 4) and not any("algorithm" in line for line in single)
  assert all("algorithm" in line for line in products if line not in single)
