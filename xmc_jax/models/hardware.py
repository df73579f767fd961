"""Chooses the number types that suit this machine."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from xmc_jax.distributed import platform
from xmc_jax.errors import ConfigError

_DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def choose_dtype(name: str) -> DTypeLike:
  """Returns the compute dtype for 'float32', 'bfloat16' or 'auto'.

  'auto' is bfloat16 where the hardware multiplies it, which is several times faster there, else float32.

  Raises:
    ConfigError: another name.
  """
  if name == "auto":
    return jnp.bfloat16 if multiplies_bfloat16() else jnp.float32
  if name not in _DTYPES:
    raise ConfigError(f"config.encoder.dtype={name!r}; set 'auto', 'float32' or 'bfloat16'")
  return _DTYPES[name]


def resolve_dtype(name: str) -> str:
  """Returns the name of the dtype that `choose_dtype` returns; 'auto' becomes this machine's dtype."""
  return jnp.dtype(choose_dtype(name)).name


def multiplies_bfloat16() -> bool:
  """Returns whether bfloat16 products are fast: on accelerators, and on a CPU with AMX.

  False on a CPU split into several simulated devices: there the layouts that AMX products need (see
  `layers.py`) would make XLA's partitioner gather every operand.
  """
  return platform.name() != "cpu" or (jax.device_count() == 1 and _cpu_has_amx())


def product_dtype(dtype: DTypeLike) -> DTypeLike:
  """Returns the type that a product of `dtype` is written in: float32 on a CPU, else `dtype`."""
  return jnp.float32 if platform.name() == "cpu" else dtype


def precision_of(dtype: DTypeLike) -> jax.lax.Precision | None:
  """Returns the precision that keeps float32 products float32; by default accelerators round them to less."""
  return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None


def packing_pays() -> bool:
  """Returns whether to store real tokens without padding (unpadding.py): on a CPU, measured as faster."""
  return platform.name() == "cpu"


@functools.cache
def _cpu_has_amx():
  try:
    return " amx_bf16" in Path("/proc/cpuinfo").read_text()
  except OSError:  # no Linux
    return False
