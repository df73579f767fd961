"""What a run tells: one progress line, stage times, metrics.jsonl, TensorBoard, tables.

Words for people go to standard error; standard output is for results.
"""

import collections
import contextlib
import json
import pathlib
import sys
import time
from collections.abc import Iterator, Mapping

from tqdm import tqdm

from xmc_jax import disk, plain, runtime
from xmc_jax.errors import UserError

_PLAIN_SECONDS = 15.0  # between progress lines where there is no terminal


class Report:
  """The voice of one run.

  Args:
    workdir: where metrics.jsonl and TensorBoard files go.

  Attributes:
    seconds: time by stage, over all the processes that worked on the run.
  """

  def __init__(self, workdir: pathlib.Path):
    self.seconds: collections.Counter[str] = collections.Counter()
    self._workdir, self._tensorboard = workdir, None

  def resume(self, first_step: int, seconds: dict[str, float], unscored: bool = False) -> None:
    """Goes on with a run's story: its stage times so far, its metrics up to a checkpoint.

    What a killed process wrote past its last checkpoint is dropped, as is the checkpoint's own validation
    where it is still to be made: they will be written again.
    """
    self.seconds.update(seconds)
    if runtime.is_main_process():
      _drop_later_lines(self._workdir / "metrics.jsonl", first_step, unscored)
      self._tensorboard = _tensorboard_writer(self._workdir / "tensorboard")

  @contextlib.contextmanager
  def stage(self, name: str, less: str = "") -> Iterator[None]:
    """Adds the time inside to `seconds[name]`, without what the stage `less` took meanwhile."""
    start, apart = time.perf_counter(), self.seconds[less]
    try:
      yield
    finally:
      self.seconds[name] += time.perf_counter() - start - (self.seconds[less] - apart)

  def scalars(self, step: int, values: dict[str, float]) -> None:
    """One line of metrics.jsonl; also to TensorBoard, where it is installed."""
    if not runtime.is_main_process():
      return
    line = {"step": step, "time": round(time.time(), 3), **values}
    path = self._workdir / "metrics.jsonl"
    try:
      with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    except OSError as error:
      what = f"{path}: cannot be written ({error.strerror or error})"
      raise UserError(f"{what}; the same command goes on from the newest checkpoint") from None
    if self._tensorboard:
      with self._leaving_tensorboard():
        for name, value in values.items():
          self._tensorboard.add_scalar(name, value, step)

  def stage_summary(self) -> str:
    """'prepare 2.1 s · train 93.0 s ... · peak memory 1.4 GB'."""
    parts = [f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items() if seconds >= 0.05]
    peaks = [f"{bytes_ / 1e9:.2f} GB {where}" for where, bytes_ in runtime.peak_memory().items()]
    return " · ".join(parts) + " · peak memory " + ", ".join(peaks)

  def close(self) -> None:
    if self._tensorboard:
      with self._leaving_tensorboard():
        self._tensorboard.close()

  @contextlib.contextmanager
  def _leaving_tensorboard(self) -> Iterator[None]:
    """Where its files cannot be written, a training does without."""
    try:
      yield
    except OSError as error:
      self._tensorboard = None
      say(f"{self._workdir}: no more is written for TensorBoard ({error.strerror or error})")


class Progress:
  """One line that moves, or a plain line now and then where there is no terminal.

  Args:
    what: the stage's name.
    total: steps, texts, ...; None when it is not known.
    first: where it starts, after a resume.
    unit: of `total`.
  """

  def __init__(self, what: str, total: int | None, *, first: int = 0, unit: str = "step"):
    what = plain.line(what)
    self._what, self._total, self._first, self._unit = what, total, first, unit
    self._done, self._start = first, time.perf_counter()
    self._spoken, self._since = self._start, (first, self._start)  # from when on the rate is taken
    self._shown = runtime.is_main_process()
    self._bar = (
      tqdm(desc=what, total=total, initial=first, unit=unit, leave=False, dynamic_ncols=True)
      if self._shown and sys.stderr.isatty()
      else None
    )

  def update(self, done: int, note: str = "") -> None:
    """`done` of `total`, counted from the very start, and a few words behind it."""
    if self._done == self._first < done:  # compiling takes longer than what follows
      self._since = done, time.perf_counter()
    self._done = done
    if self._bar is not None:
      self._bar.set_postfix_str(note, refresh=False)
      self._bar.update(done - self._bar.n)
    elif self._shown and time.perf_counter() - self._spoken >= _PLAIN_SECONDS:
      self._spoken = time.perf_counter()
      say(f"{self._what} {self._counts()}{'  ' + note if note else ''}")

  def close(self) -> None:
    if self._bar is not None:
      self._bar.close()

  def _counts(self) -> str:
    first, start = self._since if self._done > self._since[0] else (self._first, self._start)
    rate = (self._done - first) / max(time.perf_counter() - start, 1e-9)
    if not self._total:
      return f"{self._done:,} {self._unit}s"
    left = (self._total - self._done) / rate if rate > 0 else float("inf")
    return f"{self._done:,}/{self._total:,} {self._unit}s, {rate:.2f}/s, {_clock(left)} left"


def say(line: str) -> None:
  """A line for people, on standard error; a progress bar steps aside for it."""
  if runtime.is_main_process():
    tqdm.write(plain.text(line), file=sys.stderr)


def show(text: str) -> None:
  """A result, on standard output."""
  if runtime.is_main_process():
    print(plain.text(text))


def table(columns: Mapping[str, Mapping[str, float]]) -> str:
  """Lays metrics out in percent, one a line, 'P@1 41.23', with a column for each way to rank."""
  (_, main), *others = columns.items()
  width = max(map(len, main))
  heads = [name.replace("_", " ") for name, _ in others]
  # Heads stand above their columns where there are several: one alone needs none.
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


def _drop_later_lines(path: pathlib.Path, first_step: int, unscored: bool) -> None:
  if not path.exists():
    return
  kept = []
  for line in path.read_text().splitlines():
    with contextlib.suppress(ValueError, TypeError, KeyError):  # a line cut short by a kill, or none of ours
      found = json.loads(line)
      is_validation = any(name.startswith("eval/") for name in found)
      comes_again = unscored and is_validation and found["step"] == first_step
      if found["step"] <= first_step and not comes_again:
        kept.append(line + "\n")
  disk.write_text(path, "".join(kept))


def _tensorboard_writer(folder: pathlib.Path):
  try:
    from tensorboard.summary import Writer
  except ImportError:
    return None
  return Writer(str(folder))
