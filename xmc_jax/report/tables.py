"""Builds the tables of a page: metrics, slices by frequency, times, settings."""

import json
from collections.abc import Mapping, Sequence

import ml_collections
import numpy as np

from xmc_jax import config as configs
from xmc_jax.metrics import FAMILIES
from xmc_jax.metrics.slices import FREQUENCIES
from xmc_jax.report.html import Markup, bar, element, joined, note, table
from xmc_jax.report.scores import Cut

MEANINGS = {name: family.meaning for name, family in FAMILIES.items()} | {
  "coverage": "of all labels, how many are rightly found for some point",
}
RANKINGS = {
  "hybrid": "all others joined; predictions use it",
  "fused": "encoder and classifier joined",
  "encoder": "similarity of text and label",
  "classifier": "a classifier for each label",
  **configs.SOURCES,
}
_STAGES = {
  "prepare": "preparing data",
  "restore": "making or restoring the state",
  "freeze": "embedding under a frozen encoder",
  "compile": "compiling",
  "train": "training steps",
  "refit": "training again on all rows",
  "evaluate": "validation",
  "save": "saving",
  "fuse": "fitting the fusion of scores",
  "hybrid": "fitting the hybrid ranker",
  "test": "ranking test points",
}


def percent(value: float) -> str:
  """Formats a fraction in percent, with one digit: 0.5 is '50.0'."""
  return f"{100 * value:.1f}"


def cutoffs(means: Mapping[str, float]) -> list[int]:
  """Returns every k for which there is a metric 'P@k'."""
  return [int(name[2:]) for name in means if name.startswith("P@") and name[2:].isdecimal()]


def metrics(means: Mapping[str, float], intervals: Mapping[str, Sequence[float]]) -> Markup:
  """Shows means in percent with their intervals, one row for each kind of metric, one column for each k."""
  ks = cutoffs(means)

  def cell(name: str) -> object:
    if name not in means:
      return ""
    small = ""
    if name in intervals:
      low, high = intervals[name]
      small = element("small", Markup("<br>"), f"{percent(low)}–{percent(high)}")
    return joined([element("b", percent(means[name])), small])

  kinds = [kind for kind in MEANINGS if any(f"{kind}@{k}" in means for k in ks)]
  rows = [
    [joined([element("b", f"{kind}@k"), element("small", Markup("<br>"), MEANINGS[kind])])]
    + [cell(f"{kind}@{k}") for k in ks]
    for kind in kinds
  ]
  return table(["percent", *(f"k = {k}" for k in ks)], rows)


def by_source(found: Mapping[str, Mapping[str, float]], chosen: str, means: Mapping[str, float]) -> Markup:
  """Shows metrics of rankings by other scores beside those by the chosen scores."""
  columns = [(chosen, means), *((name, other) for name, other in found.items() if name != chosen)]
  rows = [
    [name, *(percent(other[name]) if name in other else "" for _, other in columns)]
    for name in configs.METRICS
    if any(name in other for _, other in columns)
  ]
  return table(["percent", *(name.replace("_", " ") for name, _ in columns)], rows)


def frequencies(
  groups: np.ndarray, num_true: np.ndarray, contributions: Mapping, shares: Mapping[str, np.ndarray]
) -> Markup:
  """Shows labels, true test pairs, parts of P@1 and P@5, and shares of pairs, by training points.

  Args:
    groups: `[L]` group of each label, as `metrics.frequency_groups` returns them.
    num_true: `[G]` number of true test pairs.
    contributions: metric -> `[G]` contributions of the groups.
    shares: name -> `[G]` shares of true pairs that are found.
  """
  names = ("P@1", "P@5")
  rows = [
    [FREQUENCIES[group], f"{np.sum(groups == group):,}", f"{pairs:,}"]
    + [f"{100 * contributions[name][group]:.2f}" for name in names]
    + [percent(values[group]) if pairs else "–" for values in shares.values()]
    for group, pairs in enumerate(num_true.tolist())
  ]
  head = ["training points", "labels", "true test pairs"]
  return table([*head, *(f"part of {name}" for name in names), *(f"in {name}, %" for name in shares)], rows)


def cuts(found: Sequence[Cut]) -> Markup:
  """Shows labels per point, precision, recall and F1 of rules that keep a part of a ranking."""
  rows = [[cut.rule, f"{cut.per_point:.2f}", *map(percent, cut[2:])] for cut in found]
  return table(["labels kept", "per point", "right, %", "found, %", "F1, %"], rows)


def reliability(bins: Sequence[Mapping[str, float]], num_rows: int) -> Markup:
  """Shows bins of probabilities, the highest first, and what a threshold at the lower end of each keeps.

  Args:
    bins: as `metrics.reliability` returns them.
    num_rows: number of test points.
  """
  rows, pairs, right = [], 0.0, 0.0
  for found in reversed(bins):
    pairs += found["pairs"]
    right += found["pairs"] * found["right"]
    rows.append(
      [f"{found['low']:.2f}–{found['high']:.2f}", f"{found['pairs']:,}", f"{100 * found['share']:.2f}"]
      + [percent(found["predicted"]), percent(found["right"])]
      + [f"{pairs / max(num_rows, 1):.2f}", percent(right / max(pairs, 1))]
    )
  head = ["probability", "pairs", "% of all", "predicted, %", "right, %"]
  return table([*head, "labels per point that a threshold keeps", "of them right, %"], rows)


def stages(seconds: Mapping[str, float]) -> Markup:
  """Shows the time of each stage, and its share of the total."""
  total = sum(seconds.values())
  rows = [
    [
      stage(name),
      duration(spent),
      percent(spent / total) + " %" if total else "",
      bar(spent / total if total else 0),
    ]
    for name, spent in seconds.items()
    if spent >= 0.05
  ]
  rows.append([element("b", "all"), element("b", duration(total)), "", ""])
  return table(["stage", "time", "share", ""], rows, text_columns=(3,))


def stage(name: str) -> str:
  """Returns a description of a stage."""
  if name.startswith("refresh_"):
    return f"refresh of {name.removeprefix('refresh_')}"
  return _STAGES.get(name, name)


def duration(seconds: float) -> str:
  """Formats a duration: '0.8 s', '12 min 5 s', '3 h 20 min'."""
  if seconds < 99.95:
    return f"{seconds:.1f} s"
  minutes, left = divmod(round(seconds), 60)
  return f"{minutes} min {left} s" if minutes < 100 else f"{minutes // 60:,} h {minutes % 60} min"


def memory(peaks: Mapping[str, float]) -> Markup:
  """Returns a sentence on peak memory."""
  if not peaks:
    return note("No reading of memory was taken.")
  parts = ", ".join(f"{peak / 1e9:.2f} GB {'of the process' if where == 'host' else f'on the {where}'}"
                    for where, peak in sorted(peaks.items(), reverse=True))  # fmt: skip
  return note(f"Peak memory: {parts}.")


def settings(config: ml_collections.ConfigDict, reference: Mapping | None = None) -> dict[str, str]:
  """Returns every setting, or those that differ from a reference, as JSON. Leaves out `plan`."""
  flat = flattened(config.to_dict() if hasattr(config, "to_dict") else config)
  usual = flattened(reference) if reference is not None else None
  return {
    key: json.dumps(value, ensure_ascii=False)
    for key, value in sorted(flat.items())
    if not key.startswith("plan.") and (usual is None or key not in usual or usual[key] != value)
  }


def flattened(tree: Mapping, prefix: str = "") -> dict[str, object]:
  """Turns {'a': {'b': 1}} into {'a.b': 1}, and lists into tuples, as JSON does not distinguish the two."""

  flat: dict[str, object] = {}
  for key, value in tree.items():
    if isinstance(value, Mapping):
      flat |= flattened(value, f"{prefix}{key}.")
    else:
      flat[f"{prefix}{key}"] = tuple(value) if isinstance(value, list) else value
  return flat
