"""The tables in docs/ that are generated from docs/results/.

  python docs/make_tables.py write [PAGE ...]                 # fill the tables in docs/ and README.md

A table is written between a mark and `<!-- end -->`, in percent, minutes and GB:
  <!-- claim: NAME METRIC ... -->    what experiments.claims.run keeps of a claim, or CLAIM/ROW, on all sets:
                                     last steps, means over seeds; of the first metric with its 95 %
                                     interval (Student's t); of minutes and GB medians
  <!-- sets: NAME/ROW METRIC ... NAME/ROW ... -->  the same; METRIC-ROW is the difference, seed by seed
  <!-- minutes: NAME ... -->         what training all rows of a claim took, a column a set
  <!-- faults -->                    what benchmarks.faults and benchmarks.disk_faults found
  <!-- accuracy: METRIC ... -->      the best of what benchmarks.accuracy keeps; results/accuracy.csv has all
  <!-- parts: PART METRIC ... -->    what benchmarks.hybrid_parts found, set by set
  <!-- compiled: NAME ... -->        what benchmarks.accelerator.compiled keeps
  <!-- planned: NAME ... -->         the same programs beside --mode=plan
  <!-- lease -->                     what benchmarks.accelerator predicts, and what its lease measured
  <!-- serving -->                   what benchmarks.serving measured
  <!-- annif: SET -->           what benchmarks.annif measured on a corpus
  <!-- hybrid cost -->               what benchmarks.hybrid_cost measured
  <!-- learning -->                  what benchmarks.learning measured
  <!-- settings: METHOD -->          a method's own settings; every_day, several, or without a name the others
  <!-- api -->                       the public names of each part of the library
"""

import json
import pathlib
import re
import statistics
import sys

_DOCS = pathlib.Path(__file__).parent
sys.path[:0] = [str(_DOCS), str(_DOCS.parent)]  # wherever this file is loaded from, installed or not
from api_tables import api_tables  # noqa: E402
from claim_tables import claim_table, claims_csv, minutes_table, sets_table  # noqa: E402
from markdown_table import markdown_table  # noqa: E402
from setting_tables import settings_list  # noqa: E402
from speed_tables import (  # noqa: E402
  annif_table,
  compiled_table,
  hybrid_cost_table,
  learning_table,
  lease_table,
  planned_table,
  serving_table,
)


def faults_table(_: list[str]) -> str:
  """Returns a Markdown table of the faults that trainings and disks went through, and their cost."""
  trials, disks = (
    json.loads((_DOCS / "results" / f"{name}.json").read_text()) for name in ("faults", "disks")
  )
  lines = []
  for kind in (kind for kind in _OF_FAULTS if kind in trials):
    found = trials[kind].values()
    count, steps = (sum(of_method.get(name, 0) for of_method in found) for name in ("trials", "steps_lost"))
    most = max(of_method.get("most", 0) for of_method in found)
    lost, noticed = _OF_FAULTS[kind]
    lines.append([kind, str(count), lost.format(steps / count, most), noticed])
  for task, found in disks.items():
    trials = f"{found['full']} full, of which {found['refused']} ended early; {found['read-only']} read-only"
    lines.append([f"a bad disk while {task}", trials, _LOST[task], _NOTICED])
  return markdown_table(["fault", "trials", "lost work", "how it is noticed"], lines)


_BEST = 8  # rows of a set in the table, beside other systems


def accuracy_table(metrics: list[str]) -> str:
  """Returns a heading and a Markdown table for each data set, in percent: the best rows, and other systems.

  P@1 has its bootstrap interval, and an arrow if the interval of the paired difference to XR-Linear lies on
  one side of 0 for every seed.
  """
  tables = []
  for name, rows in _accuracy_rows().items():
    best = {metric: max(_mean(row, "metrics", metric) for row in rows) for metric in metrics}
    lines = []
    for row in [*rows[:_BEST], *(row for row in rows[_BEST:] if "experiment" not in row["asked"])]:
      cells = [_compared(row["seeds"], metric, best[metric]) for metric in metrics]
      lines.append([row["what"], *cells, f"{_fit_minutes(row):.1f}"])
    tables.append(f"### {name}\n\n{markdown_table(['', *metrics, 'fit min'], lines)}")
  return "\n".join(tables)


def accuracy_csv() -> str:
  """Returns all rows of all data sets, in percent."""
  found = _accuracy_rows()
  metrics = list(dict.fromkeys(name for rows in found.values() for name in rows[0]["seeds"][0]["metrics"]))
  lines = [",".join(["set", "row", "seeds", *metrics, "fit min", "GB"])]
  for name, rows in found.items():
    for row in rows:
      cells = [f"{100 * _mean(row, 'metrics', metric):.1f}" for metric in metrics]
      peak = statistics.median(seed["peak_GB"] or 0 for seed in row["seeds"])
      about = [name, f'"{row["what"]}"', str(len(row["seeds"]))]
      lines.append(",".join([*about, *cells, f"{_fit_minutes(row):.1f}", f"{peak:.1f}"]))
  return "\n".join(lines) + "\n"


def _accuracy_rows() -> dict[str, list[dict]]:
  """Returns what benchmarks.accuracy keeps, best P@1 first, by data set."""
  folders = sorted((_DOCS / "results" / "accuracy").glob("*/"))
  found = {path.name: [json.loads(file.read_text()) for file in path.glob("*.json")] for path in folders}
  order = lambda row: (-_mean(row, "metrics", "P@1"), row["what"])
  return {name: sorted(rows, key=order) for name, rows in found.items()}


def _fit_minutes(row: dict) -> float:
  return statistics.median(seed["fit_seconds"] or 0 for seed in row["seeds"]) / 60


def _compared(seeds: list[dict], metric: str, best: float) -> str:
  """A cell: the mean over seeds, bold where it is the best; P@1's half interval, and an arrow."""
  mean = statistics.mean(seed["metrics"][metric] for seed in seeds)
  cell = f"**{100 * mean:.1f}**" if mean == best else f"{100 * mean:.1f}"
  if metric != "P@1":
    return cell
  bounds = [seed["intervals_95"][metric] for seed in seeds]
  half = statistics.mean((high - low) / 2 for low, high in bounds)
  return f"{cell} ± {100 * half:.1f}{_arrow(seeds, metric)}"


def _arrow(seeds: list[dict], metric: str) -> str:
  """' ↑' ahead of XR-Linear, ' ↓' behind it, '' where an interval holds 0 or there is no comparison."""
  intervals = [seed["to_xr_linear"][metric][1:] for seed in seeds if "to_xr_linear" in seed]
  if not intervals or len(intervals) < len(seeds):
    return ""
  if all(low > 0 for low, _ in intervals):
    return " ↑"
  return " ↓" if all(high < 0 for _, high in intervals) else ""


def parts_table(names: list[str]) -> str:
  """Makes a Markdown table, in percent, of what a part of the hybrid ranking is worth on each data set.

  Args:
    names: a part, and metrics.
  """
  part, *metrics = names
  paths = sorted((_DOCS / "results" / "hybrid_parts").glob(f"*_{part}.json"))
  found = {kept["set"]: kept["rows"] for kept in (json.loads(path.read_text()) for path in paths)}
  names = [name.removeprefix("LF-").partition("-")[0] for name in found]
  columns = ["", *(f"{name} {metric}" for name in names for metric in metrics)]
  lines = []
  for row in dict.fromkeys(row for rows in found.values() for row in rows):
    scores = [rows.get(row, {}).get(metric) for rows in found.values() for metric in metrics]
    lines.append([row, *("" if score is None else f"{100 * score:.1f}" for score in scores)])
  return markdown_table(columns, lines)


def _mean(row: dict, what: str, metric: str) -> float:
  return statistics.mean(seed[what].get(metric, 0.0) for seed in row["seeds"])


_STEPS = "{:.1f} steps on average, {} at most"
_OF_FAULTS = {  # what may be lost, how it is noticed
  "kill -9": (_STEPS, "an incomplete step has a temporary name"),
  "kill -9 while data are prepared": ("what was prepared", "a folder without a manifest is incomplete"),
  "kill -9 while predictions are written": ("fewer than 1,024 lines", "`.part`, with a record of its input"),
  "kill -9 while a run is exported": ("what was exported", "a temporary name is an incomplete export"),
  "kill -9, then a damaged checkpoint": (_STEPS, "checksums, before a checkpoint is used"),
  "SIGTERM": (_STEPS, "a thread receives the signal"),
}
_LOST = {
  "training": "steps since the last checkpoint",
  "preparing": "what was prepared",
  "predicting": "fewer than 1,024 lines",
}
_NOTICED = "space is checked first; the disk's own error"


def _pages() -> list[pathlib.Path]:
  return [*_DOCS.rglob("*.md"), *_DOCS.parent.glob("README.md")]


def write(pages: tuple[str, ...] = ()) -> None:
  """Fills every marked table; of these pages, by their paths in docs/, where some are named.

  Raises:
    SystemExit: there is no such page.
  """
  roots = {path: _DOCS if path.is_relative_to(_DOCS) else _DOCS.parent for path in _pages()}
  named = {path.relative_to(root).with_suffix("").as_posix(): path for path, root in roots.items()}
  wanted = [page.removesuffix(".md") for page in pages] or named
  if missing := [page for page in wanted if page not in named]:
    raise SystemExit(f"no page {missing[0]}; there are {', '.join(sorted(named))}")
  for path in (named[page] for page in wanted):
    text = path.read_text()
    if (now := filled(text)) != text:
      path.write_text(now)
  for page, text in csv_files().items():
    if page in wanted:
      (_DOCS / "results").mkdir(exist_ok=True)
      (_DOCS / "results" / f"{page}.csv").write_text(text)


def csv_files() -> dict[str, str]:
  """Returns the files beside the results that have the rows that a page has no room for, by that page."""
  return {"accuracy": accuracy_csv(), "claims": claims_csv(_DOCS / "results")}


def filled(text: str) -> str:
  """Returns a page with its marked tables made anew."""
  return _BLOCK.sub(lambda found: found[1] + _KINDS[found[2]]((found[3] or "").split()) + found[4], text)


_OF_RESULTS = {
  "claim": claim_table,
  "sets": sets_table,
  "minutes": minutes_table,
  "compiled": compiled_table,
  "planned": planned_table,
  "lease": lease_table,
  "serving": serving_table,
  "annif": annif_table,
  "hybrid cost": hybrid_cost_table,
  "learning": learning_table,
}
_KINDS = {
  "faults": faults_table,
  "accuracy": accuracy_table,
  "parts": parts_table,
  "settings": settings_list,
  "api": api_tables,
  **{kind: lambda names, make=make: make(names, _DOCS / "results") for kind, make in _OF_RESULTS.items()},
}
_BLOCK = re.compile(rf"(<!-- ({'|'.join(_KINDS)})(?:: ([^>]*?))? -->\n).*?(<!-- end -->)", re.DOTALL)

if __name__ == "__main__":
  if sys.argv[1:2] == ["write"]:
    write(tuple(sys.argv[2:]))
  else:
    sys.exit(__doc__)
