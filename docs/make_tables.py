"""Results of runs as small JSON files, and the tables in docs/ that are generated from them.

  python docs/make_tables.py collect RUN NAME "what it is"    # docs/results/NAME.json from a run's folder
  python docs/make_tables.py write                            # fill the tables in docs/*.md and README.md

A table stands between `<!-- table: NAME NAME ... -->` and `<!-- end -->`; each NAME is a row. Between
`<!-- claim: NAME METRIC METRIC ... -->` and `<!-- end -->` stand the rows of docs/results/claim_NAME.json,
which `python -m experiments.claims.run` writes: the mean over seeds and its 95 % interval (Student's t), in
percent; of minutes and GB the median. Between `<!-- epochs: NAME/ROW NAME/ROW ... -->` and `<!-- end -->`
stands how soon each row got where the first one ended. Between `<!-- faults -->` and `<!-- end -->` stands
what `python -m benchmarks.faults` found.
"""

import json
import pathlib
import re
import statistics
import sys

from scipy.stats import t as student

_DOCS = pathlib.Path(__file__).parent
_TESTED = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@10", "R@100")
_COSTS = ("minutes", "GB")  # of a run, whatever ranks its labels: the median over seeds
_BLOCK = re.compile(r"(<!-- (table|claim|epochs|faults)(?:: ([^>]*?))? -->\n).*?(<!-- end -->)", re.DOTALL)


def collect(run: pathlib.Path, name: str, what: str) -> None:
  """Writes docs/results/NAME.json from a finished run's folder."""
  report = json.loads((run / "report" / "metrics.json").read_text())
  lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
  best = max((line["eval/P@1"] for line in lines if "eval/P@1" in line), default=None)
  result = {
    "what": what,
    "validation": {"P@1": best},
    "test": report["metrics"],
    "intervals_95": report["intervals_95"],
    "step": report["step"],
    "seconds": json.loads((run / "report" / "seconds.json").read_text()),
    "config": json.loads((run / "config.json").read_text()),
  }
  (_DOCS / "results" / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


def table(names: list[str]) -> str:
  """A Markdown table with one row for each result, in percent and minutes."""
  columns = ["run", "val P@1", *_TESTED, "train min"]
  lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
  for name in names:
    result = json.loads((_DOCS / "results" / f"{name}.json").read_text())
    cells = [f"{100 * result['validation']['P@1']:.1f}"]
    cells += [f"{100 * result['test'][metric]:.1f}" for metric in _TESTED]
    minutes = (result["seconds"].get("train", 0) + result["seconds"].get("compile", 0)) / 60
    lines.append(f"| {result['what']} | {' | '.join(cells)} | {minutes:.1f} |")
  return "\n".join(lines) + "\n"


def claim_table(names: list[str]) -> str:
  """A Markdown table of a claim, in percent: its name, then the metrics that are its columns."""
  claim, *metrics = names
  rows = json.loads((_DOCS / "results" / f"claim_{claim}.json").read_text())["rows"]
  columns = ["", "seeds", *metrics]
  lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
  for row, seeds in rows.items():
    cells = [_cell(metric, [seed[metric] for seed in seeds if metric in seed]) for metric in metrics]
    lines.append(f"| {row.replace('_', ' ')} | {len(seeds)} | {' | '.join(cells)} |")
  return "\n".join(lines) + "\n"


def epochs_table(names: list[str]) -> str:
  """A Markdown table of how soon runs get where another one ends: its CLAIM/ROW, then theirs.

  By validation P@1 after each epoch, the mean over seeds. Rows that are not trained yet are left out.
  """
  curves = {name: curve for name in names if (curve := _curve(name))}
  target, epochs = curves[names[0]][-1], len(curves[names[0]])
  columns = ["", f"epochs to {100 * target:.1f}", "after 1 epoch", "best", f"after {epochs}"]
  lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
  for name, curve in curves.items():
    reached = next((str(epoch) for epoch, value in enumerate(curve, 1) if value >= target), "never")
    shown = " | ".join(f"{100 * value:.1f}" for value in (curve[0], max(curve), curve[-1]))
    lines.append(f"| {name.partition('/')[2].replace('_', ' ')} | {reached} | {shown} |")
  return "\n".join(lines) + "\n"


def faults_table(_: list[str]) -> str:
  """A Markdown table of how often each method was disturbed, by kind of fault; every run ended alike."""
  found = json.loads((_DOCS / "results" / "faults.json").read_text())
  methods = list(dict.fromkeys(method for rows in found.values() for method in rows))
  lines = [f"| fault | {' | '.join(methods)} |", "|---" * (len(methods) + 1) + "|"]
  for kind, rows in found.items():
    lines.append(f"| {kind} | " + " | ".join(str(rows.get(m, {}).get("trials", "")) for m in methods) + " |")
  return "\n".join(lines) + "\n"


def _curve(name: str) -> list[float]:
  claim, _, row = name.partition("/")
  rows = json.loads((_DOCS / "results" / f"claim_{claim}.json").read_text())["rows"]
  return [statistics.mean(values) for values in zip(*(seed["curve"] for seed in rows.get(row, ())))]


def _cell(metric: str, values: list[float]) -> str:
  if not values:
    return ""
  if metric in _COSTS:
    return f"{statistics.median(values):.1f}"
  return _over_seeds([100 * value for value in values])


def _over_seeds(values: list[float]) -> str:
  mean, count = statistics.mean(values), len(values)
  if count == 1:
    return f"{mean:.1f}"
  half = float(student.ppf(0.975, count - 1)) * statistics.stdev(values) / count**0.5
  return f"{mean:.1f} ± {half:.1f}"


def write() -> None:
  """Fills every marked table."""
  for path in (*_DOCS.glob("*.md"), *_DOCS.parent.glob("README.md")):
    text = path.read_text()
    filled = _BLOCK.sub(lambda found: found[1] + _KINDS[found[2]]((found[3] or "").split()) + found[4], text)
    if filled != text:
      path.write_text(filled)


_KINDS = {"table": table, "claim": claim_table, "epochs": epochs_table, "faults": faults_table}

if __name__ == "__main__":
  if sys.argv[1:2] == ["collect"] and len(sys.argv) == 5:
    collect(pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4])
  elif sys.argv[1:] == ["write"]:
    write()
  else:
    sys.exit(__doc__)
