"""Reads a run's metrics on its test rows, for the model card of its export."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

from xmc_jax.config import METRICS
from xmc_jax.export.exported import HYBRID

_DAMAGED = (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)


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
    return _report(workdir, "metrics.json", "", step)
  return _report(workdir, f"metrics_{scores}.json", "", step) or _report(
    workdir, "metrics.json", scores, step
  )


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


def _report(workdir: pathlib.Path, name: str, source: str, step: int) -> dict[str, Any]:
  """Reads a report, or one of the sources in it; returns {} if it is missing, damaged or of another step."""
  try:
    found = json.loads((workdir / "report" / name).read_text(encoding="utf-8"))
    if found["step"] != step or type(found["rows"]) is not int:
      return {}
    by_source = found.get("by_source", {})
    intervals = {} if source else found["intervals_95"]
    pairs = {key: (float(intervals[key][0]), float(intervals[key][1])) for key in METRICS if key in intervals}
    means = _means(by_source[source] if source else found["metrics"])
    alone = _means(by_source.get("encoder", {}))
    return {
      "rows": found["rows"],
      "without": int(found.get("rows_without_labels", 0)),
      "metrics": means,
      "intervals_95": pairs,
      "encoder": alone,
      "source": source,
    }
  except _DAMAGED:
    return {}


def _means(found: dict[str, Any]) -> dict[str, float]:
  means = {name: float(found[name]) for name in METRICS if name in found}
  if not all(0 <= value <= 1 for value in means.values()):
    raise ValueError("not a fraction")
  return means


def _row(cells: Sequence[str]) -> str:
  return f"| {' | '.join(cells)} |"
