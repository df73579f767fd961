"""Chooses between cuDNN's attention and XLA's: compares their results on this device, and times them."""

import concurrent.futures
import functools
import time
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from xmc_jax.distributed import platform, runtime
from xmc_jax.types import Array

Fused = Literal["cudnn_by_lengths", "cudnn_by_mask"]  # cuDNN's attention, and what tells it the real keys

_TRIED_TOKENS = (16, 72)  # texts of a trial: one block of cuDNN's kernel, and more than one
_TRIED_HEADS = 2
_TIMED_TOKENS = 32_768  # of all texts, about what a step encodes at once
_ROUNDS, _CALLS = 5, 10  # the shortest of so many rounds counts
_BLOCK = 8  # positions, of which cuDNN computes whole multiples
_LONG = 128  # tokens, from which on nothing is timed: there cuDNN saves memory traffic
_ROUNDING = 0.03  # of the length of a result, between two attentions in bfloat16


def choose_attention(dtype: DTypeLike, head_dim: int) -> Fused | None:
  """Returns which of cuDNN's attention kernels runs here, None for XLA's attention.

  By lengths, cuDNN reads a number a text; by mask, a bias of a number for each pair of tokens. On several
  devices it reads masks, as lengths that are split over them were never tried.
  """
  if platform.name() != "gpu" or dtype != jnp.bfloat16 or not _cudnn_runs(head_dim):
    return None
  by_lengths = jax.device_count() == 1 and _cudnn_takes_lengths(head_dim)
  return "cudnn_by_lengths" if by_lengths else "cudnn_by_mask"


def is_faster(fused: Fused, num_heads: int, head_dim: int, num_tokens: int) -> bool:
  """Returns whether to use cuDNN's attention for texts of `num_tokens`, padding included.

  Below 128 tokens it is used where it agrees with XLA's attention and takes no longer, forward and backward;
  both are timed once for each width, on as many texts as a training step encodes at once. Several processes
  must compile the same program, and with `runtime.deterministic` so must every run: then, and for longer
  texts, nothing is timed, and it is used for multiples of 8 tokens.
  """
  if num_tokens >= _LONG or not runtime.is_alone() or runtime.is_deterministic():
    return num_tokens % _BLOCK == 0
  # In a thread of its own: the caller's is tracing a program, and would trace this, too.
  with concurrent.futures.ThreadPoolExecutor(1) as thread:
    return thread.submit(_compare, fused, num_heads, head_dim, num_tokens).result()


@functools.cache
def _compare(fused, num_heads, head_dim, num_tokens):
  """Returns whether cuDNN's attention agrees with XLA's and takes no longer; tried once for each shape."""
  num_texts = max(1, _TIMED_TOKENS // num_tokens)
  make = functools.partial(_make_step, num_texts, num_tokens, num_heads, head_dim)
  try:
    usual, other = make(None), make(fused)
    if not _agree(other(), usual()):
      return False
    seconds = [(_seconds(other), _seconds(usual)) for _ in range(_ROUNDS)]  # in turns
  except Exception:  # a width that the kernel does not take, or no memory left for both
    return False
  ours, theirs = map(min, zip(*seconds))
  return ours <= theirs


def _seconds(step: Callable[[], list[Array]]) -> float:
  start = time.perf_counter()
  for _ in range(_CALLS):
    found = step()
  jax.block_until_ready(found)
  return time.perf_counter() - start


@functools.cache
def _cudnn_runs(head_dim):
  """Tries a small masked attention, forward and backward: cuDNN's requirements change with its version."""
  try:
    _try(head_dim, 16, "cudnn_by_mask")
  except Exception:  # no cuDNN, too old a GPU, an unsupported width: XLA's attention runs everywhere
    return False
  return True


@functools.cache
def _cudnn_takes_lengths(head_dim):
  """Tries the same by lengths, and compares it with XLA's attention: a wrong result would raise no error."""
  try:
    return all(
      _agree(_try(head_dim, num_tokens, "cudnn_by_lengths"), _try(head_dim, num_tokens, None))
      for num_tokens in _TRIED_TOKENS
    )
  except Exception:
    return False


def _try(head_dim, num_tokens, fused):
  return jax.block_until_ready(_make_step(num_tokens, num_tokens, _TRIED_HEADS, head_dim, fused)())


def _agree(found, usual):
  """Returns whether each array of `found` is within rounding of the other attention's."""
  wide = lambda arrays: [array.astype(jnp.float32) for array in arrays]
  return all(
    bool(jnp.linalg.norm(a - b) <= _ROUNDING * jnp.linalg.norm(b)) for a, b in zip(wide(found), wide(usual))
  )


def _make_step(num_texts, num_tokens, num_heads, head_dim, fused):
  """Returns a compiled step: attention over texts of 1 to T of T tokens, and its three gradients."""
  lengths = 1 + jnp.arange(num_texts, dtype=jnp.int32) % num_tokens
  real = jnp.arange(num_tokens) < lengths[:, None]
  mask = jnp.broadcast_to(real[:, None, None, :], (num_texts, 1, num_tokens, num_tokens))
  keys = {"key_value_seq_lengths": lengths} if fused == "cudnn_by_lengths" else {"mask": mask}
  attend = functools.partial(jax.nn.dot_product_attention, implementation=fused and "cudnn")

  @jax.jit
  def with_gradients(inputs, cotangent, keys):
    mixed, gradients = jax.vjp(lambda *inputs: attend(*inputs, **keys), *inputs)
    return [jnp.ravel(array) for array in (mixed, *gradients(cotangent))]

  shape = (num_texts, num_tokens, num_heads, head_dim)
  *inputs, cotangent = (
    jax.random.normal(key, shape, jnp.bfloat16) for key in jax.random.split(jax.random.key(0), 4)
  )
  return lambda: with_gradients(inputs, cotangent, keys)
