"""What the machine can do at most, multiply-adds and bytes copied a second, and how far a time is from it."""

import resource
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np


def _rate(function, array, amount: float, rounds: int) -> float:
  """`amount` over the median seconds of a call."""
  function(array).block_until_ready()
  seconds = []
  for _ in range(rounds):
    start = time.perf_counter()
    function(array).block_until_ready()
    seconds.append(time.perf_counter() - start)
  return amount / statistics.median(seconds)


def multiply_adds(dtype=jnp.float32, size: int = 1536, rounds: int = 7) -> float:
  """Multiply-adds a second of a square matrix product, in XLA."""
  matrix = jnp.asarray(np.random.default_rng(0).normal(size=(size, size)), dtype)
  return _rate(jax.jit(lambda a: a @ a), matrix, size**3, rounds)


def copied_bytes(megabytes: int = 256, rounds: int = 7) -> float:
  """Bytes a second, read and written, of a copy of an array that no cache holds."""
  array = jnp.ones(megabytes << 18, jnp.float32)
  return _rate(jax.jit(lambda a: a + 1), array, 2 * array.nbytes, rounds)


def transformer_work(config, num_tokens: int) -> int:
  """Multiply-adds of a transformer's dense layers for so many tokens, forward;
  attention's are few beside them.

  Args:
    config: Hugging Face's.
    num_tokens: real ones.
  """
  hidden = config.hidden_size
  inner = getattr(config, "intermediate_size", None) or config.hidden_dim
  return config.num_hidden_layers * (4 * hidden**2 + 2 * hidden * inner) * num_tokens


def say_memory() -> None:
  """Prints the most that this process has held, peers included."""
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  print(f"peak of the process, both systems and their inputs: {peak / 1e9:.2f} GB", flush=True)


def say_limit(work: int, seconds: float, what: str) -> None:
  """Prints how much of the time so many multiply-adds would take at the machine's rate."""
  rate = multiply_adds()
  _say(
    f"{what}, {2 * work / 1e9:,.0f} GFLOP", work / rate, f"{2 * rate / 1e9:.0f} GFLOP/s of products", seconds
  )


def say_bandwidth(num_bytes: int, seconds: float, what: str) -> None:
  """Prints how much of the time moving so many bytes would take at the machine's rate."""
  rate = copied_bytes()
  _say(f"{what}, {num_bytes / 1e9:.2f} GB", num_bytes / rate, f"{rate / 1e9:.1f} GB/s of copying", seconds)


def _say(what: str, least: float, rate: str, seconds: float) -> None:
  share = f"{least / seconds:.0%} of {seconds:.2f} s"
  print(f"limit: {what}, would take {least:.2f} s at this machine's {rate}: {share}", flush=True)
  say_memory()
