"""Reads a run's metrics on its test rows, for the model card of its export."""

import pathlib
from collections.abc import Sequence
from typing import Any

from xmc_jax.export.exported import HYBRID
from xmc_jax.runs import evaluate


def read(workdir: pathlib.Path, scores: str, step: int) -> dict[str, Any]:
  """Reads the test metrics, by `scores` or the run's own, of the parameters of a step; {} if there are none.

  Returns:
    The report, with the metrics that the console prints; 'intervals_95' is empty if only means are known.
    'source' is the one source in the run's own report that was read, '' for a whole report.
  """
  source = ""
  report = evaluate.stored_report(workdir, f"_{scores}" if scores else "", step)
  if scores and not report:
    source, report = scores, evaluate.stored_report(workdir, "", step)
  means = report.get("by_source", {}).get(source) if source else report.get("metrics")
  if not means:
    return {}
  shown = {"metrics": evaluate.shown(means), "source": source}
  return {**report, **shown, **({"intervals_95": {}} if source else {})}


def table(report: dict[str, Any], facts: dict[str, Any]) -> str:
  """Returns what `read` returned as a Markdown table; `facts` is the content of export.json."""
  if not report:
    return "None were measured with these parameters; --mode=evaluate measures them.\n"
  alone = report.get("by_source", {}).get("encoder", {}) if facts["ranks_by"] == HYBRID else {}
  head = ["metric", "percent", "95 % interval", *["by the encoder alone"] * bool(alone)]
  lines = [head]
  for name, mean in report["metrics"].items():
    ends = report["intervals_95"].get(name, ())
    other = [f"{100 * alone[name]:.2f}" if name in alone else ""] if alone else []
    lines.append([name, f"{100 * mean:.2f}", " to ".join(f"{100 * end:.2f}" for end in ends), *other])
  ranks = f"ranked by {report['source']} alone" if report["source"] else "ranked as the run ranks"
  num_without = report.get("rows_without_labels")
  without = f" ({num_without:,} without labels count as 0)" if num_without else ""
  own = f"{report['rows']:,} test points{without}, {ranks}. The index ranks by {facts['index_ranks_by']}.\n"
  return f"{own}\n{rows(lines)}"


def rows(cells: Sequence[Sequence[str]]) -> str:
  """Returns a Markdown table of these rows; the first is its head."""
  head, *others = (f"| {' | '.join(row)} |\n" for row in cells)
  return "".join([head, "|---" * len(cells[0]) + "|\n", *others])
