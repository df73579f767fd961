"""Handles requests to stop: SIGTERM from a scheduler, Ctrl-C from a person. A training saves first.

Python runs signal handlers between two of its own instructions, and a compilation keeps those from coming for
a minute; so a thread receives the signals. It sets a mark, which training looks at where it can save. At the
second Ctrl-C, or when a scheduler's patience runs out, the thread ends the process itself.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

from jax.experimental import multihost_utils

from xmc_jax.distributed import peer_watchdog, runtime, stderr

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_CODES = {signal.SIGTERM: 0, signal.SIGINT: 130}  # to a scheduler all is well; shells know 130


class StopRequested(BaseException):
  """Leaves a training. Whoever catches it saves what can be saved, and raises it again."""


class Stop:
  """Knows whether this process was asked to stop.

  Args:
    grace_seconds: how long after SIGTERM there is time to save.
    owns_process: may end it. A notebook's is not ours: what would end it raises KeyboardInterrupt there.
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
    ours = [number for number in _SIGNALS if before[number] != signal.SIG_IGN]  # a shell's jobs ignore Ctrl-C
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
    """Inside, a stop request saves before it exits; outside, the process ends at once."""
    self._can_save = True
    try:
      yield
    finally:
      self._can_save = False

  def requested(self, step: int) -> bool:
    """Returns whether to save after `step` and leave.

    To be called after every step: several processes all get True after the same one.
    """
    if runtime.is_alone():
      return self._signal is not None
    return multihost_utils.reached_preemption_sync_point(step)

  def check(self) -> None:
    """Raises StopRequested in work that may be thrown away; one process of several cannot leave it alone."""
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
    """Raises KeyboardInterrupt in a notebook, which the thread cannot do."""
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
  """Ends the process. What is on disk is always good to go on from: nothing needs to be put in order."""
  stderr.write_line(f"{why}; the same command goes on from what is saved")
  os._exit(_CODES[number])
