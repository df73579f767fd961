"""Runs writes in a thread of their own, while the training goes on."""

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator

import jax
import numpy as np

from xmc_jax.types import PyTree


class Background:
  """Runs writes one after the other: in a thread, or at once.

  Args:
    in_thread: whether writes run in a thread. If one fails, its error is raised by the next call.
  """

  def __init__(self, in_thread: bool):
    self.in_thread = in_thread
    self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoints") if in_thread else None
    self._last: concurrent.futures.Future[None] | None = None

  def run(self, write: Callable[[], None]) -> None:
    """Runs a write; in a thread, after those given before, and not if one of them failed."""
    if self._thread is None:
      return write()
    before = self._last

    def after_those_before() -> None:
      if before:
        before.result()
      write()

    self._last = self._thread.submit(after_those_before)

  def wait(self) -> None:
    """Waits for all writes; raises the error of the first that failed, once."""
    last, self._last = self._last, None
    if last:
      last.result()

  @contextlib.contextmanager
  def finished(self) -> Iterator[None]:
    """Waits for all writes when the block ends; an error of the block goes before theirs."""
    try:
      yield
    except BaseException:
      with contextlib.suppress(Exception):
        self.wait()
      raise
    self.wait()

  def close(self) -> None:
    """Waits for all writes, and ends the thread."""
    try:
      self.wait()
    finally:
      if self._thread:
        self._thread.shutdown()


def on_host(tree: PyTree) -> PyTree:
  """Copies arrays to the host's CPU: a step may overwrite the originals."""
  cpu = jax.local_devices(backend="cpu")[0]
  return jax.tree.map(lambda leaf: jax.device_put(np.array(leaf), cpu), jax.device_get(tree))
