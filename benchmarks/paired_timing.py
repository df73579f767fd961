"""Times two systems in one process, in turns, so that other work on the machine affects both alike."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple


class System(NamedTuple):
  """Holds the name of what is timed, and the function that runs it once."""

  name: str
  run: Callable[[], Any]


def seconds_of(work):
  """Returns wall-clock seconds of a call."""
  start = time.perf_counter()
  work()
  return time.perf_counter() - start


def timed(system):
  """Returns wall-clock and CPU seconds of one run."""
  wall, cpu = time.perf_counter(), time.process_time()
  system.run()
  return time.perf_counter() - wall, time.process_time() - cpu


def compare(ours, theirs, rounds):
  """Prints medians of wall-clock and CPU time, and how many times faster ours is, with the range over turns.

  Returns:
    The median wall-clock seconds of ours.
  """
  turns = [[timed(system) for system in (ours, theirs)] for _ in range(rounds)]
  for clock, name in enumerate(("wall", "cpu")):
    own, other = ([turn[i][clock] for turn in turns] for i in (0, 1))
    ratios = [b / a for a, b in zip(own, other)]
    print(
      f"{name}: {ours.name} {statistics.median(own):.3f} s; {theirs.name} {statistics.median(other):.3f} s; "
      f"ratio {statistics.median(ratios):.2f}, turn by turn {min(ratios):.2f} to {max(ratios):.2f}",
      flush=True,
    )
  return statistics.median(turn[0][0] for turn in turns)
