"""Says what the machine is, and how fast it multiplies and copies."""

import importlib.metadata
import os
import platform
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.accelerator.phases.timing import seconds_of
from xmc_jax.ops import precision

_PACKAGES = (
  *("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "libtpu", "flax", "optax", "orbax-checkpoint"),
  *("transformers", "tokenizers", "numpy", "scipy", "ml_collections", "lightgbm", "torch"),
)
_SIDE = {"full": 8192, "tiny": 128}
_COPIED = {"full": 2**30, "tiny": 2**16}  # numbers


def machine(size: str) -> dict[str, Any]:
  """Returns versions, the device's name and its memory."""
  versions = {}
  for name in _PACKAGES:
    try:
      versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      versions[name] = "missing"
  first = jax.local_devices()[0]
  stats = first.memory_stats() or {}
  return {
    "device": first.device_kind,
    "platform": first.platform,
    "devices": jax.device_count(),
    "compute_capability": str(getattr(first, "compute_capability", "")),
    "gigabytes_for_jax": round(stats.get("bytes_limit", 0) / 1e9, 2),
    "cores": os.cpu_count(),
    "python": platform.python_version(),
    "versions": versions,
  }


def ceilings(size: str) -> dict[str, Any]:
  """Returns TFLOP/s of a square product by each precision, and TB/s of a copy, read and written."""
  side = _SIDE[size]
  matrix = jax.random.normal(jax.random.key(0), (side, side))
  found = {"side": side}
  for name in ("bfloat16", "bf16x3", "bf16x6", "float32"):
    chosen = precision.algorithm(name)
    product = jax.jit(lambda a, chosen=chosen: jnp.matmul(a, a, precision=chosen))
    found[f"teraflops_{name}"] = round(2 * side**3 / seconds_of(product, matrix) / 1e12, 2)
  half = matrix.astype(jnp.bfloat16)
  found["teraflops_of_bfloat16_operands"] = round(
    2 * side**3 / seconds_of(jax.jit(jnp.matmul), half, half) / 1e12, 2
  )
  array = jnp.ones(_COPIED[size], jnp.float32)
  found["terabytes_copied"] = round(2 * array.nbytes / seconds_of(jax.jit(lambda a: a + 1), array) / 1e12, 3)
  return found
