"""Reads a run's metrics on its test rows, for the model card of its export."""

import pathlib
from collections.abc import Sequence
from typing import Any

from xmc_jax.config import METRICS
from xmc_jax.export.exported import HYBRID
from xmc_jax.runs import evaluate


def read(workdir: pathlib.Path, scores: str, step: int) -> dict[str, Any]:
  """Reads the test metrics of the parameters of a step; returns {} if there are none.

  Args:
    workdir: the run's folder.
    scores: the scores that ranked; '' for those of the run's config.
    step: the step of the parameters.

  Returns:
    'rows', 'without' (rows without labels), 'metrics', 'intervals_95' (empty if only means are known),
    'encoder', the metrics of the encoder alone if they are known, and 'source', the one source in the report
    that was read ('' for the whole).
  """
  if not scores:
    return _report(workdir, "", "", step)
  return _report(workdir, f"_{scores}", "", step) or _report(workdir, "", scores, step)


def table(report: dict[str, Any], facts: dict[str, Any]) -> str:
  """Returns a report as a Markdown table.

  Args:
    report: as `read` returns it.
    facts: the content of export.json.
  """
  if not report.get("metrics"):
    return "None were measured with these parameters; --mode=evaluate measures them.\n"
  alone = report["encoder"] if facts["ranks_by"] == HYBRID else {}
  head = ["metric", "percent", "95 % interval", *["by the encoder alone"] * bool(alone)]
  lines = [_row(head), "|---" * len(head) + "|"]
  for name, mean in report["metrics"].items():
    pair = report["intervals_95"].get(name)
    shown = f"{100 * pair[0]:.2f} to {100 * pair[1]:.2f}" if pair else ""
    other = [f"{100 * alone[name]:.2f}" if name in alone else ""] if alone else []
    lines.append(_row([name, f"{100 * mean:.2f}", shown, *other]))
  ranks = "ranked as the run ranks" if not report["source"] else f"ranked by {report['source']} alone"
  without = f" ({report['without']:,} without labels count as 0)" if report["without"] else ""
  own = f"{report['rows']:,} test points{without}, {ranks}. The index ranks by {facts['index_ranks_by']}.\n"
  return "\n".join([own, *lines]) + "\n"


def _report(workdir: pathlib.Path, suffix: str, source: str, step: int) -> dict[str, Any]:
  """Reads a report, or one of the sources in it; returns {} if it is missing or of another step."""
  report = evaluate.stored_report(workdir, suffix, step)
  by_source = report.get("by_source", {})
  means = by_source.get(source) if source else report.get("metrics")
  if not means:
    return {}
  return {
    "rows": report["rows"],
    "without": report.get("rows_without_labels", 0),
    "metrics": {metric: means[metric] for metric in METRICS if metric in means},
    "intervals_95": {} if source else report["intervals_95"],
    "encoder": by_source.get("encoder", {}),
    "source": source,
  }


def _row(cells: Sequence[str]) -> str:
  return f"| {' | '.join(cells)} |"
