"""Chooses how float32 matrices are multiplied where a device multiplies bfloat16 many times faster."""

from typing import Any

import jax

# In parts of bfloat16, a float32 number is high + low + rest. Six products of parts have float32's error;
# three leave out low · low and what has a rest, an error of 2^-16 in each term.
_ALGORITHMS: dict[str, Any] = {
  "float32": jax.lax.Precision.HIGHEST,
  "bf16x6": jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X6,
  "bf16x3": jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X3,
  "bfloat16": jax.lax.DotAlgorithmPreset.BF16_BF16_F32,
}
AUTO = "auto"
NAMES = (AUTO, *_ALGORITHMS)


def algorithm(name: str) -> jax.lax.Precision | jax.lax.DotAlgorithmPreset:
  """Returns the `precision` of `jax.lax.dot_general` that a name stands for; sums are float32 in each.

  Args:
    name: 'float32'; 'bf16x6', 'bf16x3' and 'bfloat16', of so many products of bfloat16 parts; 'auto' is
      'bf16x3' on accelerators, whose error in scores is near that of float32 (docs/performance.md), and
      'float32' on a CPU, which computes all of them so.
  """
  if jax.default_backend() == "cpu":
    return _ALGORITHMS["float32"]
  return _ALGORITHMS["bf16x3" if name == AUTO else name]
