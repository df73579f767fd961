"""Times a transformer layer, forward and backward, by implementation of attention and width of texts."""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.accelerator.phases.timing import seconds_of
from xmc_jax.models import hardware
from xmc_jax.models.encoder import NO_KEYS, Block, EncoderSpec

_TOKENS = {"full": 131_072, "tiny": 256}
_WIDTHS = {"full": (8, 12, 16, 24, 32, 48, 64, 128), "tiny": (8, 12)}
_SPEC = {
  "full": EncoderSpec("distilbert", 30_522, 768, 1, 12, 3072, 512),
  "tiny": EncoderSpec("distilbert", 30_522, 32, 1, 2, 64, 512),
}


def attention(size: str) -> dict[str, Any]:
  """Returns milliseconds of a layer for 131,072 tokens in bfloat16, and how far cuDNN's results differ."""
  spec, found = _SPEC[size], {}
  runs = hardware.choose_attention(jnp.bfloat16, spec.width // spec.num_heads)
  for width in _WIDTHS[size]:
    x, mask = _texts(spec, width, _TOKENS[size] // width // 8 * 8)
    by_name, times = {}, {}
    for implementation in [None] + [runs] * (runs is not None):
      name = implementation or "xla"
      step = _step(Block(spec, jnp.bfloat16, implementation, 0.0), x, mask)
      times[f"{name}_ms"] = round(1e3 * seconds_of(step, x), 3)
      by_name[name] = step(x)
    if "cudnn" in by_name:
      times["difference"] = float(_difference(*by_name.values()))
    found[f"width_{width}"] = times
  return {"fused": str(runs), **found}


def _texts(spec: EncoderSpec, width: int, number: int) -> tuple[jax.Array, jax.Array]:
  """Returns hidden states `[n, T, D]` in bfloat16, and a mask by which texts are three quarters as long."""
  x = jax.random.normal(jax.random.key(width), (number, width, spec.width), jnp.bfloat16)
  lengths = jax.random.randint(jax.random.key(0), (number,), width // 2, width + 1)
  return x, jnp.arange(width) < lengths[:, None]


def _step(block: Block, x: jax.Array, mask: jax.Array):
  """Returns a compiled function: the gradient of a layer's sum over real tokens, by parameters and input."""
  params = block.init(jax.random.key(1), x[:1], mask[:1], NO_KEYS)

  def total(params, x):
    return jnp.sum(block.apply(params, x, mask, NO_KEYS).astype(jnp.float32) * mask[..., None])

  gradient = jax.jit(jax.grad(total, argnums=(0, 1)))
  return lambda x: gradient(params, x)


def _difference(a, b) -> jax.Array:
  """Returns the largest difference of two trees' leaves, each as a share of the leaf's largest value."""
  wide = lambda leaf: leaf.astype(jnp.float32)
  shares = jax.tree.map(lambda x, y: jnp.max(jnp.abs(wide(x) - wide(y))) / jnp.max(jnp.abs(wide(x))), a, b)
  return jnp.max(jnp.stack(jax.tree.leaves(shares)))
