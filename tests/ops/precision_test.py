"""Products of bfloat16 parts: what they lose against float64, and that a loss asks a GPU for them."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from xmc_jax import ops
from xmc_jax.ops import precision


def _parts(x, number):
  """x as a sum of bfloat16 numbers, and what is left out."""
  found, rest = [], x.astype(np.float32)
  for _ in range(number):
    found.append(rest.astype(ml_dtypes.bfloat16).astype(np.float32))
    rest = rest - found[-1]
  return found


# The pairs of parts that are multiplied.
_PAIRS = {
  "bfloat16": [(0, 0)],
  "bf16x3": [(0, 0), (0, 1), (1, 0)],
  "bf16x6": [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0)],
}


def test_what_three_and_six_products_lose():
  """Of scores of unit vectors in 384 dimensions, emulated: three lose some ten times what float32 does."""
  rng = np.random.default_rng(0)
  queries, labels = (rng.normal(size=(400, 384)) for _ in range(2))
  queries, labels = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, labels))
  exact = queries.astype(np.float32).astype(np.float64) @ labels.astype(np.float32).astype(np.float64).T
  lost = {"float32": np.abs(queries.astype(np.float32) @ labels.astype(np.float32).T - exact).max()}
  for name, pairs in _PAIRS.items():
    of_queries, of_labels = _parts(queries, 3), _parts(labels, 3)
    found = sum(of_queries[i] @ of_labels[j].T for i, j in reversed(pairs))
    lost[name] = np.abs(found - exact).max()
  assert lost["bf16x6"] < 2 * lost["float32"] and lost["bf16x3"] < 30 * lost["float32"]
  assert lost["bf16x3"] < 3e-6 and lost["bfloat16"] > 1e-4


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
