"""Tests every reader with thousands of damaged files, and with files that unpack to far more than their size.

  PYTHONPATH=.:tests/data python benchmarks/fuzz_readers.py --files=10000 --seed=0
  PYTHONPATH=.:tests/data python benchmarks/fuzz_readers.py --first=123 --files=1 --verbose   # repeats one
  PYTHONPATH=.:tests/data python benchmarks/fuzz_readers.py --bombs=1000000000

Each file must load, or be refused with an error of one line that names it. Anything else is a failure: it is
printed with the command that reproduces it, and the exit status is 1. Warnings count as failures. A child
process does the work, so that a reader that hangs or crashes is only one failure. It has --seconds for each
file, and --gigabytes of address space.
"""

import argparse
import collections
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import bombs
import fuzzing


def _work(numbers, options, outcomes) -> None:
  """Runs cases in the child process; sends each number before its case, and each outcome after it."""
  warnings.simplefilter("error")
  os.fsync = lambda handle: None  # faster; the disk is not tested here
  limit = int(options.gigabytes * 1e9)
  resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
  with tempfile.TemporaryDirectory(dir=options.folder) as folder:
    cases = fuzzing.Cases(Path(folder), options.seed)
    for number in numbers:
      outcomes.send((number, None))
      outcomes.send((number, cases.run(number)))
    outcomes.send((None, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def _outcomes(options):
  """Yields (number, seconds, outcome) of all cases, and at the end (None, _, peak memory in bytes).

  The outcome is a text if the child hung or died; another child then continues after that case.
  """
  numbers = range(options.first, options.first + options.files)
  context = multiprocessing.get_context("spawn")
  while numbers:
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(numbers, options, sender), daemon=True)
    child.start()
    sender.close()
    number, start, said = numbers[0], time.perf_counter(), ""
    while not said:
      # The first wait includes the time to load libraries.
      if not receiver.poll(options.seconds + 60 * (number == numbers[0])):
        said = f"took more than {options.seconds} seconds"
        continue
      try:
        number, outcome = receiver.recv()
      except EOFError:
        child.join()
        said = f"the process died of signal {-child.exitcode}"
        continue
      if outcome is None:
        start = time.perf_counter()
      else:
        yield number, time.perf_counter() - start, outcome
      if number is None:
        return
    child.kill()
    child.join()
    yield number, time.perf_counter() - start, said
    numbers = range(number + 1, numbers.stop)


def fuzz(options) -> bool:
  """Runs all cases and prints a summary; returns whether none failed."""
  start, slowest, peak = time.perf_counter(), (0.0, 0), 0
  kinds, layouts = collections.Counter(), collections.Counter()
  for number, seconds, outcome in _outcomes(options):
    if number is None:
      peak = outcome
      continue
    if isinstance(outcome, str):
      outcome = fuzzing.Outcome("?", "?", "?", "failed", outcome)
    kinds[outcome.kind] += 1
    layouts[outcome.layout] += 1
    slowest = max(slowest, (seconds, number))
    if outcome.kind == "failed":
      print(f"FAILED {outcome.layout}, {outcome.name} ({outcome.how}): {outcome.said}")
      print(f"  again: {__file__} --seed={options.seed} --first={number} --files=1", flush=True)
    if options.verbose:
      print(number, *outcome, flush=True)
  print(f"{sum(kinds.values()):,} damaged files of {len(layouts)} layouts, seed {options.seed}:")
  print(f"  {kinds['loaded']:,} loaded, {kinds['refused']:,} refused in one line, {kinds['failed']:,} failed")
  took = time.perf_counter() - start
  print(
    f"  {took:.0f} s, the slowest {slowest[0]:.2f} s (number {slowest[1]}); peak memory {peak / 1e6:.0f} MB"
  )
  return not kinds["failed"]


def read_bombs(options) -> bool:
  print(f"files of {options.bombs:,} bytes when unpacked, and claims")
  command = [sys.executable, bombs.__file__, str(options.bombs), options.folder]
  return subprocess.run(command, check=False).returncode == 0


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--files", type=int, default=10_000)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--first", type=int, default=0, help="the number of the first file")
  parser.add_argument("--seconds", type=float, default=20.0, help="for one file")
  parser.add_argument("--gigabytes", type=float, default=4.0, help="of address space")
  parser.add_argument("--bombs", type=int, default=0, help="instead: read bombs of that many bytes")
  parser.add_argument("--folder", default=tempfile.gettempdir(), help="where to write; best in memory")
  parser.add_argument("--verbose", action="store_true", help="a line for each file")
  options = parser.parse_args()
  raise SystemExit(not (read_bombs if options.bombs else fuzz)(options))


if __name__ == "__main__":
  main()
