"""Handles requests to stop: signals of a scheduler, Ctrl-C from a person. A training saves first.

Slurm sends SIGTERM, or what its --signal says: SIGUSR1 and SIGUSR2 are treated alike.

Python runs signal handlers only between its own instructions, and a compilation can delay them by a minute;
so a thread receives the signals. It sets a mark, which training reads where it can save. At the second
Ctrl-C, or when the time after SIGTERM is over, the thread ends the process itself. It never ends a process
that belongs to a Python program: there exceptions are raised in the main thread, and clean-up follows.
"""

import _thread
import contextlib
import os
import signal
import threading
from collections.abc import Iterator

from jax.experimental import multihost_utils

from xmc_jax.distributed import runtime, stderr

_USER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
_SIGNALS = (signal.SIGTERM, signal.SIGINT, *_USER_SIGNALS)
_INTERRUPTED = 130  # how shells see Ctrl-C; a scheduler takes 0 for success
_TERMINATED = 143  # how shells see SIGTERM


class StopRequested(BaseException):
  """Leaves a training. Code that catches it saves what it can, and raises it again."""


class Stop:
  """Knows whether this process was asked to stop.

  Args:
    grace_seconds: how long after SIGTERM there is time to save.
    owns_process: may end the process. False where a program or a notebook calls: there KeyboardInterrupt is
      raised instead, and SystemExit(143) after SIGTERM, unless the program has its own handler of SIGTERM.
  """

  def __init__(self, grace_seconds: float, owns_process: bool = False):
    self._signal: signal.Signals | None = None
    self._interrupts, self._can_save, self._is_late = 0, False, False
    self._owns_process, self._raised = owns_process, 0
    self._ours: list[signal.Signals] = []
    self._patience = threading.Timer(grace_seconds, self._give_up)
    self._patience.daemon = True

  @contextlib.contextmanager
  def listening(self) -> Iterator[None]:
    """Handles signals in single-process runs, in the main thread; see `requested` for several."""
    is_main = threading.current_thread() is threading.main_thread()
    if not (runtime.is_alone() and is_main):
      for number in _USER_SIGNALS if is_main else ():  # JAX listens to SIGTERM
        signal.signal(number, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
      yield
      return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    self._ours = [number for number in _SIGNALS if self._handles(number, before[number])]
    listener = threading.Thread(target=self._listen, args=(reading,), daemon=True)
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    listener.start()
    try:
      for number in self._ours:
        signal.signal(number, self._in_main_thread)
      yield
    finally:
      for number in self._ours:
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

  @property
  def remedy(self) -> str:
    """Returns what to say of a training that has saved; '' if the caller may delete its folder."""
    return "; the same command goes on" if self._owns_process else ""

  def leave(self) -> None:
    """Ends a training that has saved: raises KeyboardInterrupt after Ctrl-C, else SystemExit.

    Its code is 0 after SIGTERM, as schedulers want it, and 143 if the process is not ours.
    """
    self._patience.cancel()
    if self._signal == signal.SIGINT:
      raise KeyboardInterrupt("all is saved")
    raise SystemExit(0 if self._owns_process else _TERMINATED)

  def _handles(self, number: signal.Signals, before: object) -> bool:
    """Returns whether to handle a signal that had a handler before; a background job ignores Ctrl-C."""
    if number != signal.SIGINT and not self._owns_process:
      return before == signal.SIG_DFL
    return before != signal.SIG_IGN

  def _in_main_thread(self, number: int, _: object) -> None:
    """Raises in a process that is not ours, because the thread cannot."""
    if self._owns_process:
      return
    if number != signal.SIGINT and (self._is_late or not self._can_save):
      raise SystemExit(_TERMINATED)
    if number == signal.SIGINT:
      self._raised += 1
      if self._raised > 1 or not self._can_save:
        raise KeyboardInterrupt

  def _listen(self, reading: int) -> None:
    while numbers := os.read(reading, 64):
      for number in numbers:
        if number in self._ours:
          self._receive(signal.Signals(number))
    os.close(reading)

  def _receive(self, number: signal.Signals) -> None:
    if not self._can_save:
      return _end(number, "interrupted") if self._owns_process else None
    if number != signal.SIGINT and self._patience.ident is None:  # not started yet
      self._patience.start()
    elif number == signal.SIGINT:
      self._interrupts += 1
      if self._interrupts > 1 and self._owns_process:
        _end(number, "interrupted at once")
    if self._signal is None:
      self._signal = number
      more = "; Ctrl-C again stops at once" if number == signal.SIGINT else ""
      stderr.write_line(f"\nstopping after this step{more}")

  def _give_up(self) -> None:
    """Leaves without saving, when the time after SIGTERM is over."""
    if self._owns_process:
      _end(signal.SIGTERM, "there was no time to save")
    stderr.write_line("there was no time to save")
    self._is_late = True
    _thread.interrupt_main(self._signal or signal.SIGTERM)  # calls the handler there, as soon as it can


def _end(number: signal.Signals, why: str) -> None:
  """Ends the process at once. Files on disk are always complete, so that nothing needs cleaning up."""
  stderr.write_line(f"{why}; the same command goes on from what is saved")
  os._exit(_INTERRUPTED if number == signal.SIGINT else 0)
