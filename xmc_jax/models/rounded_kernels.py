"""Rounds an encoder's kernels once a step: a chunk of texts would otherwise round all of them again."""

import flax
import jax
import jax.numpy as jnp

from xmc_jax.models import hardware
from xmc_jax.models.embedder import EncoderConfig
from xmc_jax.models.layers import ROUNDED
from xmc_jax.types import PyTree


def with_rounded_kernels(encoder_config: EncoderConfig, params: PyTree) -> PyTree:
  """Adds the encoder's kernels in the type of its products; the gradient stays that of the float32 kernels.

  Args:
    encoder_config: as `embedder.build` takes it.
    params: those of an Embedder, and others.

  Returns:
    `params`, with an entry ROUNDED that `Embedder.embed` reads; none where products are written in float32,
    as on a CPU.
  """
  dtype = hardware.product_dtype(hardware.choose_dtype(encoder_config.dtype))
  if dtype == jnp.float32:
    return params
  flat = flax.traverse_util.flatten_dict(params["encoder"])
  kernels = {path: jax.lax.stop_gradient(leaf) for path, leaf in flat.items() if path[-1] == "kernel"}
  rounded = {path: kernel.astype(dtype) for path, kernel in kernels.items()}
  return {**params, ROUNDED: flax.traverse_util.unflatten_dict(rounded)}
