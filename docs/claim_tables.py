"""Tables of what experiments.claims.run keeps, which docs/make_tables.py writes into the pages."""

import itertools
import json
import pathlib
import statistics

from markdown_table import markdown_table
from scipy.stats import t as student

_COSTS = ("minutes", "GB")  # of a run, whatever ranks its labels: the median over seeds
_IN_CSV = (
  *("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@10", "R@100", "head_P@1", "torso_P@1", "tail_P@1"),
  *("decile_1_P@5", "decile_10_P@5", "over_5_labels_P@5", *_COSTS),
)
_SETS = {"Cpp": "_cpp", "Debian": "", "Tate": "_tate", "WordNet": "_wordnet"}  # a claim's files, set by set


def claim_table(names: list[str], results: pathlib.Path) -> str:
  """Returns a Markdown table of last steps, in percent: a line a row, some columns a set that has any.

  The first metric has its 95 % interval over seeds; the others are means, or medians of costs.

  Args:
    names: claims, of which all rows are shown, or single rows as CLAIM/ROW; then metrics.
    results: docs/results.
  """
  of_names = {name: _by_set(name.partition("/")[0], results) for name in names}
  metrics = [name for name, by_set in of_names.items() if not by_set]
  sets = [name for name in _SETS if any(name in by_set for by_set in of_names.values())]
  titles = ["", *(f"{name} {metric}" for name in sets for metric in metrics)]
  if sets == ["Debian"]:
    titles = ["", *metrics]  # its files have no ending: neither have those of other sets that stand alone
  lines = []
  for name, by_set in of_names.items():
    chosen = name.partition("/")[2]
    for row in [chosen] if chosen else dict.fromkeys(row for rows in by_set.values() for row in rows):
      seeds = [by_set.get(name, {}).get(row, []) for name in sets]
      cells = [_level(one, metric, metric == metrics[0]) for one in seeds for metric in metrics]
      lines.append([row.replace("_", " "), *cells])
  return markdown_table([title.replace("_", " ") for title in titles], lines)


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
    own, others = (_by_set(of, results) for of in (claim, beside or claim))
    pairs = [(own.get(name, {}).get(row, []), others.get(name, {}).get(other, [])) for name in _SETS]
    cells = [_difference(*pair, metric) if other else _level(pair[0], metric, True) for pair in pairs]
    heading = f"{metric} − {other}" if other else metric
    lines.append([shown, heading.replace("_", " "), *cells])
    shown = ""
  ran = [True, True, *(any(cells) for cells in [*zip(*lines)][2:])]
  missing = ", ".join(name for name, had in zip(_SETS, ran[2:]) if not had)
  lines = [[*line[:2], *(cell or "not run" for cell in line[2:])] for line in lines]
  titles = [f"not run: {missing}" if missing else "", "", *_SETS]
  shown_of = lambda line: list(itertools.compress(line, ran))
  return markdown_table(shown_of(titles), map(shown_of, lines))


def claims_csv(results: pathlib.Path) -> str:
  """Returns all rows of all claims: means of last steps over seeds, in percent; of costs medians."""
  lines = [",".join(["claim", "row", "seeds", *_IN_CSV])]
  for path in sorted(results.glob("claim_*.json")):
    for row, seeds in json.loads(path.read_text())["rows"].items():
      cells = [_level(seeds, metric, with_interval=False) for metric in _IN_CSV]
      if any(cells):
        lines.append(",".join([path.stem.removeprefix("claim_"), row, str(len(seeds)), *cells]))
  return "\n".join(lines) + "\n"


def minutes_table(names: list[str], results: pathlib.Path) -> str:
  """Returns a Markdown table of the minutes that all rows of claims took to train, set by set."""
  lines = []
  for name in names:
    by_set = _by_set(name, results)
    trained = [by_set.get(of_set, {}).values() for of_set in _SETS]
    minutes = [sum(seed.get("minutes", 0) for seeds in rows for seed in seeds) for rows in trained]
    lines.append([f"`{name}`", *(f"{spent:.0f}" if spent else "" for spent in minutes)])
  return markdown_table(["", *_SETS], lines)


def _by_set(claim: str, results: pathlib.Path) -> dict[str, dict[str, list[dict]]]:
  """Returns what a claim's rows gave, by set, row and seed; {} if there is no such claim."""
  paths = {name: results / f"claim_{claim}{end}.json" for name, end in _SETS.items()}
  return {name: json.loads(path.read_text())["rows"] for name, path in paths.items() if path.exists()}


def _level(seeds: list[dict], metric: str, with_interval: bool) -> str:
  values = [value for value in _values(seeds, metric) if value is not None]
  if not values:
    return ""
  if metric in _COSTS:
    return f"{statistics.median(values):.1f}"
  values = [100 * value for value in values]
  return over_seeds(values) if with_interval else f"{statistics.mean(values):.1f}"


def _difference(own: list[dict], others: list[dict], metric: str) -> str:
  pairs = zip(_values(own, metric), _values(others, metric))
  differences = [100 * (ours - theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
  return over_seeds(differences, signed=True) if differences else ""


def over_seeds(values: list[float], signed: bool = False) -> str:
  """Returns the mean and its 95 % interval (Student's t); of one value there is none."""
  mean, count = statistics.mean(values), len(values)
  shown = f"{mean:+.1f}" if signed else f"{mean:.1f}"
  if count == 1:
    return shown
  half = float(student.ppf(0.975, count - 1)) * statistics.stdev(values) / count**0.5
  return f"{shown} ± {half:.1f}"


def _values(seeds: list[dict], metric: str) -> list[float | None]:
  """Returns a metric of each seed's last step; None where a seed has it not."""
  return [(seed if metric in _COSTS else seed.get("last", seed)).get(metric) for seed in seeds]
