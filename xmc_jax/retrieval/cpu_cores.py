"""Runs work in parallel on the host's cores: one block of work per core, with single-threaded products."""

import concurrent.futures
import functools
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

_T = TypeVar("_T")


def num_cores() -> int:
  """Returns the number of cores that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _OneThread:
  """Limits each NumPy product to one core in a `with` block, so that several products run in parallel.

  The limit holds for the whole process: the first thread that enters sets it, the last that leaves lifts it.
  """

  def __init__(self):
    self._lock, self._inside = threading.Lock(), 0
    self._limit: Any = None  # threadpoolctl's, while any thread is inside

  def __enter__(self) -> None:
    with self._lock:
      if not self._inside:
        self._limit = _blas().limit(limits=1, user_api="blas")
      self._inside += 1

  def __exit__(self, *_: object) -> None:
    with self._lock:
      self._inside -= 1
      if not self._inside:
        self._limit.restore_original_limits()


one_thread_per_product = _OneThread()


@functools.cache
def _blas() -> ThreadpoolController:
  """Finds the loaded libraries that compute products: NumPy's and SciPy's. It is slow, so it is cached."""
  import scipy.linalg  # noqa: F401 - loads SciPy's; a library that is loaded later is not limited

  return ThreadpoolController()


def in_order(work: Callable[..., _T], *parts: Iterable) -> list[_T]:
  """Calls `work(a, b, ...)` for each a, b, ... of `parts`, one per core; returns the results in order.

  A single call is made in the current thread: to start a thread takes longer than a small search.
  """
  pieces = list(zip(*parts, strict=True))
  with one_thread_per_product:
    if len(pieces) < 2:
      return [work(*piece) for piece in pieces]
    with concurrent.futures.ThreadPoolExecutor(num_cores(), "cores") as pool:
      return list(pool.map(lambda piece: work(*piece), pieces))
