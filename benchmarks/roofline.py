"""Measures the machine's limits: multiply-adds and copied bytes per second."""

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
