"""The table of the server's speed in docs/serving.md; docs/make_tables.py writes it."""

import json
import pathlib

_ENCODERS = {"minilm": "MiniLM-L6"}  # by a run's name; the demo's has a bag


def serving_table(_: list[str], results: pathlib.Path) -> str:
  """Returns a Markdown table of what `benchmarks.serving` measured: medians over rounds."""
  path = results / "serving.json"
  if not path.exists():
    return "Nothing has been measured yet.\n"
  columns = (
    "encoder",
    "route",
    "clients",
    "requests a second",
    "median ms",
    "99th percentile ms",
    "CPU ms each",
  )
  lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
  for run in json.loads(path.read_text())["runs"]:
    for row in (row for row in run["rows"] if row["clients"] != 8):  # between one and many
      cells = [_ENCODERS.get(run["run"], "bag"), f"`{row['path']}`", str(row["clients"])]
      cells += [_median(row[key]) for key in ("per_second", "p50_ms", "p99_ms", "cpu_ms")]
      lines.append(f"| {' | '.join(cells)} |")
  return "\n".join(lines) + "\n"


def _median(figures: list[float]) -> str:
  """Writes the first of a median, the lowest and the highest; with a decimal where it is below 10."""
  return f"{figures[0]:,.{int(figures[0] < 10)}f}"
