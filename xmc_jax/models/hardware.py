"""Chooses the number type and the attention kernel that suit this machine."""

import functools
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from xmc_jax.errors import ConfigError

_TRIED_TOKENS = (16, 72)  # texts of a trial: one block of cuDNN's kernel, and more than one
_ROUNDING = 0.03  # of the length of a result, between two attentions in bfloat16
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
  return jax.default_backend() != "cpu" or (jax.device_count() == 1 and _cpu_has_amx())


def product_dtype(dtype: DTypeLike) -> DTypeLike:
  """Returns the type that a product of `dtype` is written in: float32 on a CPU, else `dtype`."""
  return jnp.float32 if jax.default_backend() == "cpu" else dtype


def precision_of(dtype: DTypeLike) -> jax.lax.Precision | None:
  """Returns the precision that keeps float32 products float32; by default accelerators round them to less."""
  return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None


def packing_pays() -> bool:
  """Returns whether to store real tokens without padding (unpadding.py): on a CPU, measured as faster."""
  return jax.default_backend() == "cpu"


Fused = Literal["cudnn_by_lengths", "cudnn_by_mask"]  # cuDNN's attention, and what tells it the real keys


def choose_attention(dtype: DTypeLike, head_dim: int) -> Fused | None:
  """Returns which of cuDNN's attention kernels runs here, None for XLA's attention.

  By lengths, cuDNN reads a number a text; by mask, a bias of a number for each pair of tokens. On several
  devices it reads masks, as lengths that are split over them were never tried.
  """
  if jax.default_backend() != "gpu" or dtype != jnp.bfloat16 or not _cudnn_runs(head_dim):
    return None
  by_lengths = jax.device_count() == 1 and _cudnn_takes_lengths(head_dim)
  return "cudnn_by_lengths" if by_lengths else "cudnn_by_mask"


@functools.cache
def _cpu_has_amx(cpu_info=Path("/proc/cpuinfo")):
  try:
    return " amx_bf16" in cpu_info.read_text()
  except OSError:  # no Linux
    return False


@functools.cache
def _cudnn_runs(head_dim):
  """Tries a small masked attention, forward and backward: cuDNN's requirements change with its version."""
  try:
    _small_attention(head_dim, 16, "cudnn", by_lengths=False)
  except Exception:  # no cuDNN, too old a GPU, an unsupported width: XLA's attention runs everywhere
    return False
  return True


@functools.cache
def _cudnn_takes_lengths(head_dim):
  """Tries the same by lengths, and compares it with XLA's attention: a wrong result would raise no error."""
  for num_tokens in _TRIED_TOKENS:
    try:
      found = _small_attention(head_dim, num_tokens, "cudnn", by_lengths=True)
    except Exception:
      return False
    usual = _small_attention(head_dim, num_tokens, None, by_lengths=False)
    if any(np.linalg.norm(a - b) > _ROUNDING * np.linalg.norm(b) for a, b in zip(found, usual)):
      return False
  return True


def _small_attention(head_dim, num_tokens, implementation, by_lengths):
  """Returns attention over texts of 1 to T of T tokens, and the gradients by query, key and value."""
  lengths = jnp.arange(1, num_tokens + 1, dtype=jnp.int32)
  real = jnp.arange(num_tokens) < lengths[:, None]
  mask = jnp.broadcast_to(real[:, None, None, :], (num_tokens, 1, num_tokens, num_tokens))
  keys = {"key_value_seq_lengths": lengths} if by_lengths else {"mask": mask}
  attend = functools.partial(jax.nn.dot_product_attention, implementation=implementation, **keys)

  def with_gradients(inputs, cotangent):
    mixed, gradients = jax.vjp(attend, *inputs)
    return mixed, *gradients(cotangent)

  shape = (4, num_tokens, num_tokens, 2, head_dim)
  inputs = jax.random.normal(jax.random.key(0), shape, jnp.bfloat16)
  found = jax.jit(with_gradients)(inputs[:3], inputs[3])
  return [np.asarray(value, np.float32).ravel() for value in found]
