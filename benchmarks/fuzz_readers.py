"""Tests every reader with thousands of damaged files.

  PYTHONPATH=tests/data python -m benchmarks.fuzz_readers --files=10000 --seed=0
  PYTHONPATH=tests/data python -m benchmarks.fuzz_readers --first=123 --files=1         # repeats one

Each file must load, or be refused with an error of one line that names it. Anything else is a failure: it is
printed, and the exit status is 1. Warnings count as failures. A child process does the work with --gigabytes
of address space; an alarm ends it where a file takes more than --seconds, and another one goes on after it.
"""

import collections
import multiprocessing
import os
import resource
import signal
import tempfile
import time
import warnings
from pathlib import Path

import fuzzing

from benchmarks import children, flags


def _work(numbers, options, outcomes) -> None:
  """Runs cases in the child process; sends `(number, seconds, outcome, peak bytes)` after each."""
  warnings.simplefilter("error")
  os.fsync = lambda handle: None  # faster; the disk is not tested here
  limit = int(options.gigabytes * 1e9)
  resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
  with tempfile.TemporaryDirectory(dir=options.folder) as folder:
    cases = fuzzing.Cases(Path(folder), options.seed)
    for number in numbers:
      signal.setitimer(signal.ITIMER_REAL, options.seconds)
      start = time.perf_counter()
      outcome = cases.run(number)
      outcomes.send((number, time.perf_counter() - start, outcome, children.peak_bytes("self")))


def _outcomes(options):
  """Yields what `_work` sends; of a case at which the child ended, a failed outcome."""
  numbers = range(options.first, options.first + options.files)
  context = multiprocessing.get_context("spawn")
  while numbers:
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(numbers, options, sender), daemon=True)
    child.start()
    sender.close()
    try:
      while numbers:
        found = receiver.recv()
        numbers = range(found[0] + 1, numbers.stop)
        yield found
    except EOFError:
      child.join()
      said = f"the process ended with {child.exitcode}; {-signal.SIGALRM} is too slow"
      yield numbers[0], 0.0, fuzzing.Outcome("?", "?", "?", "failed", said), 0
      numbers = numbers[1:]
    child.join()


def fuzz(options) -> bool:
  """Runs all cases and prints a summary; returns whether none failed."""
  kinds, slowest, most = collections.Counter(), (0.0, 0), 0
  for number, seconds, outcome, peak in _outcomes(options):
    kinds[outcome.kind] += 1
    slowest, most = max(slowest, (seconds, number)), max(most, peak)
    if outcome.kind == "failed":
      print(f"FAILED --seed={options.seed} --first={number} --files=1:", *outcome, flush=True)
  print(f"{kinds['loaded']:,} loaded, {kinds['refused']:,} refused in one line, {kinds['failed']:,} failed")
  print(f"the slowest {slowest[0]:.2f} s (number {slowest[1]}); peak memory {most / 1e6:.0f} MB")
  return not kinds["failed"]


def main():
  options = flags.parse(
    __doc__, files=10_000, seed=0, first=0, seconds=20.0, gigabytes=4.0, folder=tempfile.gettempdir()
  )
  raise SystemExit(not fuzz(options))


if __name__ == "__main__":
  main()
