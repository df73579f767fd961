"""Times programs on a device that computes while the host goes on."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax


def seconds_of(function: Callable, *args: Any, calls: int = 10, rounds: int = 5) -> float:
  """Returns the median seconds of a call, of `rounds` rounds of `calls` calls; compilation is not counted."""
  jax.block_until_ready(function(*args))
  found = []
  for _ in range(rounds):
    start = time.perf_counter()
    for _ in range(calls):
      result = function(*args)
    jax.block_until_ready(result)
    found.append((time.perf_counter() - start) / calls)
  return statistics.median(found)


def peak_gigabytes() -> float | None:
  """Returns the most memory that the first device has had in use; None if it does not say."""
  stats = jax.local_devices()[0].memory_stats() or {}
  return round(stats["peak_bytes_in_use"] / 1e9, 3) if "peak_bytes_in_use" in stats else None
