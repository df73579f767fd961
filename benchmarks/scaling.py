"""How cost grows with labels and with points: time and memory of a step, of refreshes, of evaluation.

  PYTHONPATH=.:benchmarks python benchmarks/scaling.py                # an hour; resumes where it stopped
  PYTHONPATH=.:benchmarks python benchmarks/scaling.py --methods dpr --again
  PYTHONPATH=.:benchmarks python benchmarks/scaling.py --only_table
  python docs/make_figures.py                                         # docs/figures/scaling.png

All methods have the same small encoder, a bag of 64 dimensions, batches of 256 and synthetic data:
16,000 points with 10,000 to 3 million labels, and 16,000 to 1 million points with 30,000 labels. Every point
of this grid runs in its own process (scaling_point.py). Points that take more than --limit CPU seconds or
--most_memory are stopped and marked in docs/results/scaling.json, which is rewritten after each point.

Prints the exponents of units: the slope of a line through log(size) and log(CPU seconds), and of MB, over the
larger half of the sizes, and in brackets over all of them. Times are CPU times of all threads, which vary
less than the wall clock if other work runs on the same cores.
"""

import argparse
import json
import math
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time

import synthetic_data

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results" / "scaling.json"
METHODS = ("dexml", "dpr", "ance", "ova", "ngame", "dexa", "unidec", "depsl", "prime", "ramen")
# UniDEC's clusters have 250 points at each of these N, whose ratios are powers of two.
POINTS = (16_000, 64_000, 256_000, 1_024_000)
LABELS = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000)
FEW_POINTS, FEW_LABELS = POINTS[0], LABELS[1]  # the fixed size while the other one is varied
NO_REFRESH = ("open", "walks", "batch", "step", "evaluation")
_PATIENCE = 4  # the wall-clock limit as a multiple of the CPU limit


def grid(by: str = "both") -> list[tuple[int, int]]:
  """Returns `(points, labels)`, small ones first, of both sweeps or of that over 'labels' or 'points'."""
  over_labels, over_points = ({(FEW_POINTS, one) for one in LABELS}, {(one, FEW_LABELS) for one in POINTS})
  sizes = {"labels": over_labels, "points": over_points}.get(by, over_labels | over_points)
  return sorted(sizes, key=lambda size: (size[0] * size[1], size))


def measured(method: str, size: tuple[int, int], folder: pathlib.Path, limit: float, most_gb: float) -> dict:
  """Measures a point; returns its record, which is partial if the point was stopped."""
  script = [sys.executable, str(pathlib.Path(__file__).with_name("scaling_point.py"))]
  with tempfile.TemporaryFile("w+") as said:
    command = [*script, method, *map(str, size), str(folder)]
    child, start, why = subprocess.Popen(command, cwd=ROOT, stdout=said), time.perf_counter(), ""
    while child.poll() is None:
      time.sleep(0.2)
      seconds, gb = _used(child.pid)
      if seconds > limit or time.perf_counter() - start > _PATIENCE * limit:
        why = f"more than {limit:.0f} s"
      elif gb > most_gb:
        why = f"more than {most_gb:.0f} GB"
      if why:
        child.kill()
        child.wait()
    said.seek(0)
    units = {found.pop("unit"): found for found in map(json.loads, (line for line in said if line[0] == "{"))}
  if child.returncode and not why:
    why = f"ended with {child.returncode}"
  record = {"method": method, "points": size[0], "labels": size[1], "commit": _commit(), "units": units}
  return {**record, "left_out": why} if why else record


def _commit() -> str:
  """Returns the repository's short commit hash; '' outside a repository."""
  found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
  return found.stdout.strip()


def _used(pid: int) -> tuple[float, float]:
  """Returns the CPU seconds of a process so far, and its resident GB now."""
  try:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
  except OSError:
    return 0.0, 0.0
  ticks, pages = int(fields[11]) + int(fields[12]), int(fields[21])
  return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE") / 1e9


def kept() -> list[dict]:
  return json.loads(RESULTS.read_text())["found"] if RESULTS.exists() else []


def keep(found: list[dict]) -> None:
  """Writes all records, one per line."""
  order = {method: number for number, method in enumerate(METHODS)}
  found = sorted(found, key=lambda one: (order[one["method"]], one["points"], one["labels"]))
  machine = f"{os.cpu_count()} cores, {platform.machine()}"
  head = {"machine": machine, "seconds": "of the processor (cpu) and by the clock (wall)", "memory": "MB"}
  lines = ",\n".join(json.dumps(one) for one in found)
  text = json.dumps(head)[:-1] + f', "found": [\n{lines}\n]}}\n'
  beside = RESULTS.with_suffix(".tmp")
  beside.write_text(text)
  beside.replace(RESULTS)


def sweep(methods: list[str], by: str, again: bool, limit: float, most_gb: float) -> None:
  for size in grid(by):
    have = {one["method"] for one in kept() if (one["points"], one["labels"]) == size}
    wanted = [method for method in methods if again or method not in have]
    if not wanted:
      continue
    with tempfile.TemporaryDirectory() as place:
      folder = synthetic_data.write(pathlib.Path(place) / "data", size[0] + size[0] // 8, size[1])
      for method in wanted:
        start = time.perf_counter()
        record = measured(method, size, folder, limit, most_gb)
        others = [one for one in kept() if (one["method"], one["points"], one["labels"]) != (method, *size)]
        keep([*others, record])
        units = ", ".join(f"{name} {one['cpu']:.3g}" for name, one in record["units"].items())
        why = f"; left out: {record['left_out']}" if "left_out" in record else ""
        said = f"{method}, N {size[0]:,}, L {size[1]:,}: {units}{why}"
        print(f"{said} ({time.perf_counter() - start:.0f} s)", file=sys.stderr, flush=True)
      shutil.rmtree(folder)


def costs(record: dict) -> dict[str, float]:
  """Returns the costs to fit: CPU seconds of units and of all refreshes, peak MB, XLA's MB of a step."""
  units = record["units"]
  found = {unit: one["cpu"] for unit, one in units.items()}
  refreshes = [one["cpu"] for unit, one in units.items() if unit not in NO_REFRESH]
  if refreshes and "step" in units:  # without a step, some refreshes may be missing
    found["refreshes"] = sum(refreshes)
  if "left_out" not in record:
    found["MB"] = max(one["peak_mb"] for one in units.values())
  if "step" in units:
    found["MB of a step"] = units["step"]["xla_mb"]
  return found


def series(found: list[dict], method: str, by: str) -> dict[str, list[tuple[int, float]]]:
  """Returns `(size, cost)` by unit, sizes ascending; `by` is 'labels' or 'points', the other is fixed."""
  fixed = ("points", FEW_POINTS) if by == "labels" else ("labels", FEW_LABELS)
  out: dict[str, list[tuple[int, float]]] = {}
  for one in sorted(found, key=lambda one: one[by]):
    if one["method"] == method and one[fixed[0]] == fixed[1]:
      for unit, cost in costs(one).items():
        out.setdefault(unit, []).append((one[by], max(cost, 1e-6)))
  return out


def slope(pairs: list[tuple[int, float]]) -> float:
  """Returns the slope of the least-squares line through the logarithms."""
  xs, ys = ([math.log(value) for value in values] for values in zip(*pairs))
  x, y = sum(xs) / len(xs), sum(ys) / len(ys)
  return sum((a - x) * (b - y) for a, b in zip(xs, ys)) / sum((a - x) ** 2 for a in xs)


def shown(pairs: list[tuple[int, float]]) -> str:
  """Formats exponents as '1.02 (0.93)'; returns '' for fewer than two sizes."""
  if len(pairs) < 2:
    return ""
  larger = pairs[-max(2, -(-len(pairs) // 2)) :]
  return f"{slope(larger):.2f} ({slope(pairs):.2f})"


def table(found: list[dict]) -> str:
  """Returns a Markdown table of the exponents in L and in N, with the cost at the largest size."""
  columns = ["method", "unit", "exponent in L", "at the largest L", "exponent in N", "at the largest N"]
  lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
  for method in METHODS:
    by_labels, by_points = (series(found, method, by) for by in ("labels", "points"))
    for unit in by_labels | by_points:
      cells = [method, unit]
      for pairs in (by_labels.get(unit, []), by_points.get(unit, [])):
        last = f"{pairs[-1][1]:.3g}{'' if 'MB' in unit else ' s'} at {pairs[-1][0]:,}" if pairs else ""
        cells += [shown(pairs), last]
      lines.append(f"| {' | '.join(cells)} |")
  return "\n".join(lines)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS, metavar="METHOD")
  parser.add_argument("--by", default="both", choices=("both", "labels", "points"), help="what is varied")
  parser.add_argument("--again", action="store_true", help="points that are there already, too")
  parser.add_argument("--limit", type=float, default=240.0, help="CPU seconds of a point, compiling included")
  parser.add_argument("--most_memory", type=float, default=9.0, help="GB of a point")
  parser.add_argument("--only_table", action="store_true", help="measure nothing")
  given = parser.parse_args()
  if not given.only_table:
    sweep(given.methods, given.by, given.again, given.limit, given.most_memory)
  print(table(kept()))


if __name__ == "__main__":
  main()
