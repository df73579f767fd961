"""Times a transformer layer, forward and backward, by implementation of attention and width of texts."""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

from benchmarks.accelerator.phases.timing import seconds_of
from xmc_jax.models import fused_attention
from xmc_jax.models.encoder import NO_KEYS, Block, EncoderSpec

_SHORT = 16  # tokens, up to which attention is also tried by sums
_TOKENS = {"full": 131_072, "tiny": 256}
_WIDTHS = {"full": (8, 12, 16, 24, 32, 48, 64, 128), "tiny": (8, 12)}
_SPEC = {
  "full": EncoderSpec("distilbert", 30_522, 768, 1, 12, 3072, 512),
  "tiny": EncoderSpec("distilbert", 30_522, 32, 1, 2, 64, 512),
}


def attention(size: str) -> dict[str, Any]:
  """Returns milliseconds of a layer for 131,072 tokens in bfloat16, and how far results are from XLA's.

  `chosen` is what the library takes after it has timed attention alone; `failed` says why cuDNN's kernel
  refuses a width.
  """
  spec, found = _SPEC[size], {}
  head_dim = spec.width // spec.num_heads
  runs = fused_attention.choose_attention(jnp.bfloat16, head_dim)
  for width in _WIDTHS[size]:
    x, mask = _texts(spec, width, _TOKENS[size] // width // 8 * 8)
    usual, times = None, {}
    for name, step in _steps(spec, x, mask, runs is not None):
      try:
        times[f"{name}_ms"] = round(1e3 * seconds_of(step, x), 3)
      except Exception as error:
        if not name.startswith("cudnn"):
          raise
        times[f"{name}_failed"] = f"{type(error).__name__}: {error}"[:200]
        continue
      usual = step(x) if usual is None else usual
      if name != "xla":
        times[f"{name}_difference"] = float(_difference(usual, step(x)))
    faster = runs and fused_attention.is_faster(runs, spec.num_heads, head_dim, width)
    found[f"width_{width}"] = {**times, "chosen": runs if faster else "xla"}
  return {"fused": str(runs), **found}


def _steps(spec: EncoderSpec, x: jax.Array, mask: jax.Array, cudnn: bool) -> Iterator[tuple[str, Any]]:
  """Yields a layer's step by each attention: XLA's, by sums where texts are short, cuDNN's where it runs.

  cuDNN reads a bias for each pair of tokens, or a length for each text.
  """
  block = Block(spec, jnp.bfloat16, None, 0.0)
  yield "xla", _step(block, x, mask)
  if x.shape[1] <= _SHORT:
    with mock.patch.object(jax.nn, "dot_product_attention", by_sums):
      yield "sums", _step(block, x, mask)
  if cudnn:
    with mock.patch.object(fused_attention, "is_faster", lambda *_: True):
      for fused in ("cudnn_by_mask", "cudnn_by_lengths"):
        yield fused, _step(Block(spec, jnp.bfloat16, fused, 0.0), x, mask)


def by_sums(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, **_: Any) -> jax.Array:
  """Computes `jax.nn.dot_product_attention` as sums over elementwise products, which need no tensor cores.

  For texts of 12 tokens the program for an H200 moves half as many bytes. What the sums cost on its other
  cores cannot be read off the program.

  Args:
    query, key, value: `[n, T, H, d]`.
    mask: `[n, 1, T, T]`.
  """
  wide = jnp.float32
  scores = jnp.sum(query[:, :, None].astype(wide) * key[:, None].astype(wide), axis=-1)  # [n, T, T, H]
  scores = jnp.where(mask[:, 0, :, :, None], scores * query.shape[-1] ** -0.5, jnp.finfo(wide).min)
  weights = jax.nn.softmax(scores, axis=2)
  return jnp.sum(weights[..., None] * value[:, None].astype(wide), axis=2).astype(value.dtype)


def _texts(spec: EncoderSpec, width: int, number: int) -> tuple[jax.Array, jax.Array]:
  """Returns hidden states `[n, T, D]` in bfloat16, and a mask by which texts are three quarters as long."""
  x = jax.random.normal(jax.random.key(width), (number, width, spec.width), jnp.bfloat16)
  lengths = jax.random.randint(jax.random.key(0), (number,), width // 2, width + 1)
  return x, jnp.arange(width) < lengths[:, None]


def _step(block: Block, x: jax.Array, mask: jax.Array):
  """Returns a compiled function: the gradient of a layer's sum over real tokens, by parameters and input."""
  params = block.clone(implementation=None).init(jax.random.key(1), x[:1], mask[:1], NO_KEYS)
  lengths = mask.sum(axis=1, dtype=jnp.int32)

  def total(params, x):
    mixed = block.apply(params, x, mask, NO_KEYS, lengths=lengths)
    return jnp.sum(mixed.astype(jnp.float32) * mask[..., None])

  gradient = jax.jit(jax.grad(total, argnums=(0, 1)))
  return lambda x: gradient(params, x)


def _difference(a, b) -> jax.Array:
  """Returns the length of the difference of two trees, as a share of the first one's length."""
  squares = lambda tree: sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree))
  wide_a, wide_b = (jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree) for tree in (a, b))
  return jnp.sqrt(squares(jax.tree.map(jnp.subtract, wide_a, wide_b)) / squares(wide_a))
