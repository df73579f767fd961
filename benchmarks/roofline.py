"""Measures the machine's limits (multiply-adds and copied bytes per second), and compares times with them."""

import resource
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np


def _rate(function, array, amount: float, rounds: int, calls: int) -> float:
  """Returns `amount` divided by the median seconds of a call, over rounds of so many calls."""
  function(array).block_until_ready()
  seconds = []
  for _ in range(rounds):
    start = time.perf_counter()
    for _ in range(calls):
      result = function(array)
    result.block_until_ready()
    seconds.append((time.perf_counter() - start) / calls)
  return amount / statistics.median(seconds)


def multiply_adds(
  dtype=jnp.float32, size: int = 1536, rounds: int = 7, calls: int = 1, precision=None
) -> float:
  """Returns multiply-adds per second of a square matrix product in XLA."""
  matrix = jnp.asarray(np.random.default_rng(0).normal(size=(size, size)), dtype)
  product = jax.jit(lambda a: jnp.matmul(a, a, precision=precision))
  return _rate(product, matrix, size**3, rounds, calls)


def copied_bytes(megabytes: int = 256, rounds: int = 7, calls: int = 1) -> float:
  """Returns bytes per second, read and written, when an array larger than any cache is copied."""
  array = jnp.ones(megabytes << 18, jnp.float32)
  return _rate(jax.jit(lambda a: a + 1), array, 2 * array.nbytes, rounds, calls)


def transformer_work(config, num_tokens: int) -> int:
  """Returns the multiply-adds of the forward pass of a transformer's dense layers; attention adds few.

  Args:
    config: Hugging Face's config.
    num_tokens: number of tokens without padding.
  """
  hidden = config.hidden_size
  inner = getattr(config, "intermediate_size", None) or config.hidden_dim
  return config.num_hidden_layers * (4 * hidden**2 + 2 * hidden * inner) * num_tokens


def say_memory() -> None:
  """Prints the peak resident memory of this process, peers included."""
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  print(f"peak of the process, both systems and their inputs: {peak / 1e9:.2f} GB", flush=True)


def say_limit(work: int, seconds: float, what: str) -> None:
  """Prints the share of a time that `work` multiply-adds would take at the machine's rate."""
  rate = multiply_adds()
  _say(
    f"{what}, {2 * work / 1e9:,.0f} GFLOP", work / rate, f"{2 * rate / 1e9:.0f} GFLOP/s of products", seconds
  )


def say_bandwidth(num_bytes: int, seconds: float, what: str) -> None:
  """Prints the share of a time that moving `num_bytes` would take at the machine's rate."""
  rate = copied_bytes()
  _say(f"{what}, {num_bytes / 1e9:.2f} GB", num_bytes / rate, f"{rate / 1e9:.1f} GB/s of copying", seconds)


def _say(what: str, least: float, rate: str, seconds: float) -> None:
  share = f"{least / seconds:.0%} of {seconds:.2f} s"
  print(f"limit: {what}, would take {least:.2f} s at this machine's {rate}: {share}", flush=True)
  say_memory()
