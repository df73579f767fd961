"""Runs writes in a thread of their own, while the training goes on."""

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator

from xmc_jax.console import say


class Background:
  """Runs writes one after the other: in a thread, or at once.

  Args:
    in_thread: whether writes run in a thread. If one fails, those after it are left out, and the next `wait`
      or `finished` raises its error.
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
    """Waits for all writes when the block ends, and ends the thread.

    Raises:
      Exception: a write failed, also if the block ends by a stop request. If the block fails itself, its
        error is raised, and that of the write is only printed.
    """
    try:
      yield
    except Exception:
      self.note_failure()
      raise
    except BaseException:  # a stop: what it wanted to save must be on the disk
      self.wait()
      raise
    else:
      self.wait()
    finally:
      if self._thread:
        self._thread.shutdown()

  def note_failure(self) -> None:
    """Waits for all writes, and prints the error of the first that failed."""
    try:
      self.wait()
    except Exception as error:
      say(f"a checkpoint was not written: {error}")
