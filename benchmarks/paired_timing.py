"""Two systems timed against each other in one process, in turns, so that both meet the same neighbours."""

import statistics
import time


def timed(system):
  """Wall-clock and processor seconds of one run."""
  wall, cpu = time.perf_counter(), time.process_time()
  system.run()
  return time.perf_counter() - wall, time.process_time() - cpu


def compare(ours, theirs, rounds):
  """Prints medians of both clocks, and how many times as fast ours is, over all turns and turn by turn.

  Returns:
    Ours, in median wall-clock seconds.
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
