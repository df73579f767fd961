"""Handles requests to stop: SIGTERM from a scheduler, Ctrl-C from a person. A training saves first.

Python runs signal handlers only between its own instructions, and a compilation can delay them by a minute;
so a thread receives the signals. It sets a mark, which training reads where it can save. At the second
Ctrl-C, or when the time after SIGTERM is over, the thread ends the process itself.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

from jax.experimental import multihost_utils

from xmc_jax.distributed import peer_watchdog, runtime, stderr

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_CODES = {signal.SIGTERM: 0, signal.SIGINT: 130}  # a scheduler takes 0 for success; shells know 130


class StopRequested(BaseException):
  """Leaves a training. Code that catches it saves what it can, and raises it again."""


class Stop:
  """Knows whether this process was asked to stop.

  Args:
    grace_seconds: how long after SIGTERM there is time to save.
    owns_process: may end the process. False in a notebook: there KeyboardInterrupt is raised instead.
  """

  def __init__(self, grace_seconds: float, owns_process: bool = True):
    self._signal: signal.Signals | None = None
    self._interrupts, self._can_save = 0, False
    self._owns_process, self._raised = owns_process, 0
    self._patience = threading.Timer(grace_seconds, _end, (signal.SIGTERM, "there was no time to save"))
    self._patience.daemon = True

  @contextlib.contextmanager
  def listening(self) -> Iterator[None]:
    """Handles signals in single-process runs, in the main thread; see `requested` for several."""
    if not (runtime.is_alone() and threading.current_thread() is threading.main_thread()):
      yield
      return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    ours = [number for number in _SIGNALS if before[number] != signal.SIG_IGN]  # a background job ignores it
    listener = threading.Thread(target=self._listen, args=(reading,), daemon=True)
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    listener.start()
    try:
      for number in ours:
        signal.signal(number, self._in_main_thread)
      yield
    finally:
      for number in ours:
        signal.signal(number, before[number])
      signal.set_wakeup_fd(wakeup)
      os.close(writing)  # ends the thread
      listener.join()
      self._patience.cancel()

  @contextlib.contextmanager
  def saving(self) -> Iterator[None]:
    """Lets a stop request save before it exits while the block runs; outside, the process ends at once."""
    self._can_save = True
    try:
      yield
    finally:
      self._can_save = False

  def requested(self, step: int) -> bool:
    """Returns whether to save after `step` and leave.

    Call it after every step: all processes of a run get True after the same step.
    """
    if runtime.is_alone():
      return self._signal is not None
    return multihost_utils.reached_preemption_sync_point(step)

  def check(self) -> None:
    """Raises StopRequested in work that need not be saved; not if several processes must stop together."""
    if runtime.is_alone() and self._signal is not None:
      raise StopRequested

  def leave(self) -> None:
    """Ends a training that has saved: raises KeyboardInterrupt after Ctrl-C, SystemExit(0) after SIGTERM."""
    self._patience.cancel()
    peer_watchdog.part()
    if self._signal == signal.SIGINT:
      raise KeyboardInterrupt("all is saved")
    raise SystemExit(0)

  def _in_main_thread(self, number: int, _: object) -> None:
    """Raises KeyboardInterrupt in a notebook, because the thread cannot."""
    if number == signal.SIGINT and not self._owns_process:
      self._raised += 1
      if self._raised > 1 or not self._can_save:
        raise KeyboardInterrupt

  def _listen(self, reading: int) -> None:
    while numbers := os.read(reading, 64):
      for number in numbers:
        if number in _SIGNALS:
          self._receive(signal.Signals(number))
    os.close(reading)

  def _receive(self, number: signal.Signals) -> None:
    may_end = self._owns_process or number == signal.SIGTERM
    if not self._can_save:
      return _end(number, "interrupted") if may_end else None
    if number == signal.SIGTERM and not self._patience.is_alive():
      self._patience.start()
    elif number == signal.SIGINT:
      self._interrupts += 1
      if self._interrupts > 1 and may_end:
        _end(number, "interrupted at once")
    if self._signal is None:
      self._signal = number
      more = "; Ctrl-C again stops at once" if number == signal.SIGINT else ""
      stderr.write_line(f"\nstopping after this step{more}")


def _end(number: signal.Signals, why: str) -> None:
  """Ends the process at once. Files on disk are always complete, so that nothing needs cleaning up."""
  stderr.write_line(f"{why}; the same command goes on from what is saved")
  os._exit(_CODES[number])
