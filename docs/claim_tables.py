"""Tables of what experiments.claims.run keeps, which docs/make_tables.py writes into the pages."""

import itertools
import json
import pathlib
import re
import statistics

from scipy.stats import t as student

_COSTS = ("minutes", "GB")  # of a run, whatever ranks its labels: the median over seeds
_COLUMN = re.compile(r"(?P<metric>.+?)(?P<last>@last)?(?:-(?P<other>[\w.]+))?")
_SETS = {"Cpp": "_cpp", "Debian": "", "Tate": "_tate", "WordNet": "_wordnet"}  # a claim's files, set by set


def claim_table(names: list[str], results: pathlib.Path) -> str:
  """Returns a Markdown table of claims' rows, in percent: means over seeds and their 95 % interval.

  Args:
    names: claims, of which all rows are shown, or single rows as CLAIM/ROW; then columns: METRIC, of the best
      epoch by validation, or METRIC@last, of the last; with -ROW behind either, the difference to that row
      of the same claim, seed by seed.
    results: docs/results.
  """
  rows, columns = [], []
  for name in names:
    claim, _, row = name.partition("/")
    if not (results / f"claim_{claim}.json").exists():
      columns.append(name)
      continue
    of_claim = rows_of(claim, results)
    rows += [(of_claim, shown) for shown in ([row] if row else of_claim) if shown in of_claim]
  lines = [f"|  | seeds | {' | '.join(map(_heading, columns))} |", "|---" * (len(columns) + 2) + "|"]
  for of_claim, row in rows:
    cells = [_claim_cell(of_claim, row, column) for column in columns]
    lines.append(f"| {row.replace('_', ' ')} | {len(of_claim[row])} | {' | '.join(cells)} |")
  return "\n".join(lines) + "\n"


def epochs_table(names: list[str], results: pathlib.Path) -> str:
  """Returns a Markdown table of how soon runs get where another one ends: its CLAIM/ROW, then theirs.

  By validation P@1 after each epoch, the mean over seeds. Rows that are not trained yet are left out.
  """
  curves = {name: curve for name in names if (curve := _curve(name, results))}
  if names[0] not in curves:
    return "Nothing has been trained yet.\n"
  target, epochs = curves[names[0]][-1], len(curves[names[0]])
  columns = ["", f"epochs to {100 * target:.1f}", "after 1 epoch", "best", f"after {epochs}"]
  lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
  for name, curve in curves.items():
    reached = next((str(epoch) for epoch, value in enumerate(curve, 1) if value >= target), "never")
    shown = " | ".join(f"{100 * value:.1f}" for value in (curve[0], max(curve), curve[-1]))
    lines.append(f"| {name.partition('/')[2].replace('_', ' ')} | {reached} | {shown} |")
  return "\n".join(lines) + "\n"


def sets_table(names: list[str], results: pathlib.Path) -> str:
  """Returns a Markdown table of last steps: a line a metric of a row, a column a set that has any.

  Args:
    names: CLAIM/ROW and its metrics, METRIC or the difference METRIC-ROW or METRIC-CLAIM/ROW; then another.
    results: docs/results.
  """
  lines, claim, row, shown = [], "", "", ""
  for name in names:
    metric, _, other = name.partition("-")
    if "/" in metric:
      claim, row = metric.split("/")
      shown = row.replace("_", " ")
      continue
    beside, _, other = other.rpartition("/")
    column = f"{metric}@last-{other}" if other else f"{metric}@last"
    cells = []
    for end in _SETS.values():
      own, others = (_of_set(of, end, results) for of in (claim, beside or claim))
      cells.append(_claim_cell(others | {row: own.get(row, [])}, row, column))
    lines.append([shown, _heading(column).replace(" at the end", ""), *cells])
    shown = ""
  ran = [True, True, *(any(cells) for cells in [*zip(*lines)][2:])]
  missing = ", ".join(name for name, had in zip(_SETS, ran[2:]) if not had)
  lines = [[*line[:2], *(cell or "not run" for cell in line[2:])] for line in lines]
  header, *rest = [
    f"| {' | '.join(itertools.compress(line, ran))} |\n"
    for line in ([f"not run: {missing}" if missing else "", "", *_SETS], *lines)
  ]
  return "".join([header, "|---" * sum(ran) + "|\n", *rest])


def minutes_table(names: list[str], results: pathlib.Path) -> str:
  """Returns a Markdown table of the minutes that all rows of claims took to train, set by set."""
  lines = [f"|  | {' | '.join(_SETS)} |", "|---" * (len(_SETS) + 1) + "|"]
  for name in names:
    trained = [_of_set(name, end, results).values() for end in _SETS.values()]
    minutes = [sum(seed.get("minutes", 0) for seeds in rows for seed in seeds) for rows in trained]
    lines.append(f"| `{name}` | {' | '.join(f'{spent:.0f}' if spent else '' for spent in minutes)} |")
  return "\n".join(lines) + "\n"


def _of_set(claim: str, end: str, results: pathlib.Path) -> dict[str, list[dict]]:
  """Returns what a claim's rows gave on one set; nothing where it was not run."""
  return rows_of(claim + end, results) if (results / f"claim_{claim}{end}.json").exists() else {}


def rows_of(claim: str, results: pathlib.Path) -> dict[str, list[dict]]:
  """Returns what a claim's rows gave, seed by seed."""
  return json.loads((results / f"claim_{claim}.json").read_text())["rows"]


def cell(metric: str, values: list[float]) -> str:
  """Returns a cell: of costs the median, else the mean in percent and its interval over seeds."""
  if not values:
    return ""
  if metric in _COSTS:
    return f"{statistics.median(values):.1f}"
  return over_seeds([100 * value for value in values])


def over_seeds(values: list[float], signed: bool = False) -> str:
  """Returns the mean and its 95 % interval (Student's t); of one value there is none."""
  mean, count = statistics.mean(values), len(values)
  shown = f"{mean:+.1f}" if signed else f"{mean:.1f}"
  if count == 1:
    return shown
  half = float(student.ppf(0.975, count - 1)) * statistics.stdev(values) / count**0.5
  return f"{shown} ± {half:.1f}"


def _heading(column: str) -> str:
  parts = _COLUMN.fullmatch(column)
  shown = parts["metric"].replace("_", " ") + (" at the end" if parts["last"] else "")
  return f"{shown} − {parts['other'].replace('_', ' ')}" if parts["other"] else shown


def _claim_cell(rows: dict[str, list[dict]], row: str, column: str) -> str:
  parts = _COLUMN.fullmatch(column)
  own = _values(rows[row], parts)
  if not parts["other"]:
    return cell(parts["metric"], [value for value in own if value is not None])
  if parts["other"] == row:
    return ""
  pairs = zip(own, _values(rows.get(parts["other"], []), parts))
  differences = [100 * (ours - theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
  return over_seeds(differences, signed=True) if differences else ""


def _values(seeds: list[dict], parts: re.Match) -> list[float | None]:
  """Returns a metric of each seed; None where a seed has it not."""
  return [(seed.get("last", {}) if parts["last"] else seed).get(parts["metric"]) for seed in seeds]


def _curve(name: str, results: pathlib.Path) -> list[float]:
  claim, _, row = name.partition("/")
  return [
    statistics.mean(values)
    for values in zip(*(seed["curve"] for seed in rows_of(claim, results).get(row, ())))
  ]
