"""Chooses how float32 matrices are multiplied where a device multiplies bfloat16 many times faster."""

from typing import Any

import jax

from xmc_jax.distributed import platform

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
    name: 'float32'; 'bf16x6', 'bf16x3' and 'bfloat16', which are six, three and one product of bfloat16
      parts; 'auto' is 'bf16x3' on accelerators, where errors of cosines are at most about 1e-6, ten times
      float32's (docs/performance.md). A CPU, and a GPU without bfloat16 units, compute all in float32.

  Raises:
    ValueError: another name.
  """
  if name not in NAMES:
    raise ValueError(f"precision {name!r} is none of {', '.join(map(repr, NAMES))}")
  kind = platform.name()
  if kind == "cpu" or (kind == "gpu" and not _multiplies_bfloat16(jax.devices()[0])):
    return _ALGORITHMS["float32"]
  return _ALGORITHMS["bf16x3" if name == AUTO else name]


def _multiplies_bfloat16(device: jax.Device) -> bool:
  """Returns False for a GPU older than Ampere, for which XLA refuses products of bfloat16 parts."""
  return float(getattr(device, "compute_capability", 8.0)) >= 8.0
