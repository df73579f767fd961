"""The host's cores: how many there are, a block of work for each, and products that take no more than one."""

import concurrent.futures
import functools
import os
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from threadpoolctl import ThreadpoolController

_T = TypeVar("_T")


def num_cores() -> int:
  """Cores that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _OneThread:
  """A context in which a product of NumPy's takes one core, so that several run side by side.

  The limit is the whole process's: the first who enters sets it, and the last who leaves lifts it.
  """

  def __init__(self):
    self._lock, self._inside, self._limit = threading.Lock(), 0, None

  def __enter__(self) -> None:
    with self._lock:
      if not self._inside:
        self._limit = _blas().limit(limits=1, user_api="blas")
      self._inside += 1

  def __exit__(self, *_) -> None:
    with self._lock:
      self._inside -= 1
      if not self._inside:
        self._limit.restore_original_limits()


one_thread_a_call = _OneThread()


@functools.cache
def _blas() -> ThreadpoolController:
  return ThreadpoolController()  # looks through all libraries that are loaded


def in_order(work: Callable[..., _T], num_threads: int, *parts: Iterable) -> list[_T]:
  """Does `work(a, b, ...)` for each a, b, ... of `parts`, side by side; returns the results in their order.

  A single piece of work is done here and now: to begin a thread takes longer than a small search.

  Args:
    work: called once for each.
    num_threads: at most so many at once.
    parts: iterables of one length.
  """
  pieces = list(zip(*parts, strict=True))
  if len(pieces) < 2:
    return [work(*piece) for piece in pieces]
  with concurrent.futures.ThreadPoolExecutor(num_threads, "cores") as pool:
    return list(pool.map(lambda piece: work(*piece), pieces))
