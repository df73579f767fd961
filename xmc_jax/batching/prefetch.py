"""Builds batches ahead of the device."""

import concurrent.futures
from collections.abc import Callable, Generator

from xmc_jax.types import Batch


def prefetch(
  build: Callable[[int], Batch], first: int, last: int, depth: int = 3
) -> Generator[Batch, None, None]:
  """Yields the batches of steps `first .. last - 1`; a host thread builds them up to `depth` steps ahead."""
  with concurrent.futures.ThreadPoolExecutor(1, "batches") as pool:
    waiting = [pool.submit(build, step) for step in range(first, min(first + depth, last))]
    try:
      for step in range(first, last):
        batch = waiting.pop(0).result()
        if step + depth < last:
          waiting.append(pool.submit(build, step + depth))
        yield batch
    finally:
      for future in waiting:
        future.cancel()
