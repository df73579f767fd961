"""Console output: messages and a progress bar on standard error, results and tables on standard output."""

import contextlib
import contextvars
import sys
import time
from collections.abc import Iterator, Mapping

from tqdm import tqdm

from xmc_jax import sanitize
from xmc_jax.distributed import runtime

_PLAIN_SECONDS = 15.0  # between progress lines without a terminal
_is_quiet = contextvars.ContextVar("is_quiet", default=False)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
  """Prints nothing in the block: no messages, results or progress. Other threads are not affected."""
  before = _is_quiet.set(True)
  try:
    yield
  finally:
    _is_quiet.reset(before)


def _prints() -> bool:
  return not _is_quiet.get() and runtime.is_main_process()  # the latter asks JAX for a device


class Progress:
  """Shows a progress bar, or prints a plain line every 15 seconds if there is no terminal.

  Args:
    what: the stage's name.
    total: number of units (steps, texts, ...); None if unknown.
    first: number of units that were done before a resume.
    unit: name of one unit.
  """

  def __init__(self, what: str, total: int | None, *, first: int = 0, unit: str = "step"):
    what = sanitize.line(what)
    self._what, self._total, self._first, self._unit = what, total, first, unit
    self._done, self._start = first, time.perf_counter()
    self._spoken, self._since = self._start, (first, self._start)  # the rate is measured from here on
    self._shown = _prints()
    self._bar = (
      tqdm(desc=what, total=total, initial=first, unit=unit, leave=False, dynamic_ncols=True)
      if self._shown and sys.stderr.isatty()
      else None
    )

  def wait(self, note: str) -> None:
    """Shows at once what the next unit waits for, such as a compilation."""
    if self._bar is not None:
      self._bar.set_postfix_str(note)
    else:
      say(f"{self._what}: {note}")

  def update(self, done: int, note: str = "") -> None:
    """Shows that `done` of `total` units are finished, counted from the very start, followed by `note`."""
    is_first = self._done == self._first < done
    if is_first:  # leaves compilation out of the rate
      self._since = done, time.perf_counter()
    self._done = done
    if self._bar is not None:
      self._bar.set_postfix_str(note, refresh=False)
      if is_first and done == self._first + 1:  # the bar's clock begins after the first unit
        self._bar.unpause()
        self._bar.n = self._bar.initial = done
        self._bar.refresh()
      self._bar.update(done - self._bar.n)
    elif self._shown and time.perf_counter() - self._spoken >= _PLAIN_SECONDS:
      self._spoken = time.perf_counter()
      say(f"{self._what} {self._counts()}{'  ' + note if note else ''}")

  def close(self) -> None:
    if self._bar is not None:
      self._bar.close()

  def _counts(self) -> str:
    counts = (
      f"{self._done:,}/{self._total:,} {self._unit}s" if self._total else f"{self._done:,} {self._unit}s"
    )
    if not self._total or self._done == self._first + 1:  # the first one alone was perhaps compiled
      return counts
    first, start = self._since if self._done > self._since[0] else (self._first, self._start)
    rate = (self._done - first) / max(time.perf_counter() - start, 1e-9)
    left = (self._total - self._done) / rate if rate > 0 else float("inf")
    return f"{counts}, {rate:.2f}/s, {_clock(left)} left"


def say(line: str) -> None:
  """Prints a message on standard error, without breaking a progress bar."""
  if _prints():
    tqdm.write(sanitize.text(line), file=sys.stderr)


def show(text: str, flush: bool = False) -> None:
  """Prints a result on standard output; `flush` is for lines that somebody waits for."""
  if _prints():
    print(sanitize.text(text), flush=flush)


def table(columns: Mapping[str, Mapping[str, float]]) -> str:
  """Formats metrics in percent, one metric per line ('P@1 41.23') and one column per way to rank."""
  (_, main), *others = columns.items()
  width = max(map(len, main))
  heads = [name.replace("_", " ") for name, _ in others]
  # A single column needs no heading.
  lines = [" ".join([" " * width, f"{next(iter(columns)):>6}", *heads])] if others else []
  for metric, value in main.items():
    cells = (f"{100 * found[metric]:{max(len(head), 6)}.2f}" for head, (_, found) in zip(heads, others))
    lines.append(" ".join([f"{metric:<{width}}", f"{100 * value:6.2f}", *cells]))
  return "\n".join(lines)


def _clock(seconds: float) -> str:
  if seconds == float("inf"):
    return "?"
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
