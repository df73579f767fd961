"""Makes tables of speed: of the server, of the hybrid ranking, of accelerators, and beside Annif.

docs/results/accelerator.json is what benchmarks.accelerator.compiled keeps; docs/results/lease/ has the facts
of its `lease` by device, and what its `predict` keeps.
"""

import json
import pathlib
from collections.abc import Callable
from typing import Any

from markdown_table import markdown_table

_ENCODERS = {"minilm": "MiniLM-L6"}  # of the server's runs, by name; the demo's has a bag
_BESIDE_ANNIF = {
  "bonsai": "Annif: omikuji, Bonsai",
  "parabel": "Annif: omikuji, Parabel",
  "fasttext": "Annif: fastText",
  "mllm": "Annif: MLLM",
  "ensemble": "Annif: ensemble of Bonsai, fastText, MLLM",
  "xmc_jax": "`auto`",
  "with_xmc_jax": "Annif: ensemble of Bonsai and `auto`",
}
_COLUMNS = {
  "predicted_seconds": "predicted seconds",
  "gigabytes_of_products": "GB of products",
  "gigabytes_of_the_rest": "GB of everything else",
  "gigabytes_of_temporaries": "GB of temporaries",
}
_DEVICES = ("h100", "h200")
_PEAK = 989e12  # FLOP/s of dense bfloat16 products, by the data sheet of both
# Facts of a lease: fact, figure, what it is, and what is predicted: a text for each device, or a figure of
# the compiled program.
_FACTS = (
  ("rates", "teraflops_bfloat16", "TFLOP/s of a bfloat16 product, 8,192 each way", ("798", "790")),
  ("rates", "terabytes_copied", "TB/s of a copy, read and written", ("3.0", "4.3")),
  ("operation", "differs_by", "largest difference of 15 operations from float64", "≤ 1e-4"),
  ("method", "loss", "largest difference of 11 methods' first losses from a CPU's", "≤ 1e-4"),
  (
    "dexml_131k",
    "step_seconds",
    "DEXML, 131,072 labels, batch 4,096: seconds of a step",
    "predicted_seconds",
  ),
  ("dexml_131k", "utilisation", "its model FLOPs utilisation", "utilisation"),
  ("dexml_131k", "gigabytes_at_most", "its peak, GB", "gigabytes"),
  ("peer", "step_seconds", "PyTorch, the same step: seconds", ""),
  ("peer", "times_as_fast", "times as fast as PyTorch", ""),
  ("dexml_1_3m", "step_seconds", "1,305,280 labels, batch 8,192: seconds of a step", "predicted_seconds"),
  ("dexml_1_3m", "gigabytes_at_most", "its peak, GB", "gigabytes"),
  ("soft_top_5_1_3m", "step_seconds", "the same by SoftTop-5: seconds of a step", "predicted_seconds"),
  ("rae_xmc_test", "hybrid", "RAE-XMC, MiniLM-L6, test P@1 by the hybrid", "49.6 on a CPU"),
  ("rae_xmc_test", "fused", "as its paper ranks", "45.2 on a CPU"),
  ("rae_xmc_test", "at", "seconds until its test table", "2,800 on a CPU"),
)


def lease_table(_: list[str], results: pathlib.Path) -> str:
  """Returns a Markdown table of what a lease measured, by device, beside what is predicted."""
  numbers = [number for number, name in enumerate(_DEVICES) if (results / "lease" / f"{name}.jsonl").exists()]
  titles = [
    f"{_DEVICES[number].upper()}, {which}" for number in numbers for which in ("predicted", "measured")
  ]
  lines = []
  for fact, figure, what, predicted in _FACTS:
    cells = []
    for number in numbers:
      device = _DEVICES[number]
      facts = _facts(results / "lease" / f"{device}.jsonl")
      programs = json.loads((results / "lease" / f"{device}_predicted.json").read_text(encoding="utf-8"))
      expected = predicted[number] if isinstance(predicted, tuple) else predicted
      cells.append(_PREDICTED[expected](programs[fact]) if expected in _PREDICTED else expected)
      cells.append(_measured([one for one in facts if one["fact"] == fact and "failed" not in one], figure))
    if any(cells[1::2]):
      lines.append([what, *cells])
  return markdown_table(["what", *titles], lines)


_PREDICTED: dict[str, Callable[[dict[str, Any]], str]] = {
  "predicted_seconds": lambda program: f"{program['predicted_seconds']:.2f}",
  "utilisation": lambda program: f"{program['model_flops'] / program['predicted_seconds'] / _PEAK:.1%}",
  "gigabytes": lambda program: (
    f"{program['gigabytes_of_arguments'] + program['gigabytes_of_temporaries']:.1f}"
  ),
}


def _facts(file: pathlib.Path) -> list[dict[str, Any]]:
  return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _measured(facts: list[dict[str, Any]], figure: str) -> str:
  """Returns a figure of facts of one name: of the last one, or of operations and methods the largest."""
  if not facts:
    return ""
  if figure == "utilisation":
    return f"{facts[-1]['teraflops_a_second'] * 1e12 / _PEAK:.1%}"
  if figure in ("hybrid", "fused"):
    return next(str(one["P@1"]) for one in facts if one["ranked_by"] == figure)
  if facts[0]["fact"] in ("operation", "method"):
    return f"{max(one[figure] for one in facts):.0e}"
  return f"{facts[-1][figure]:.4g}"


def compiled_table(names: list[str], results: pathlib.Path) -> str:
  """Returns a Markdown table with a row for each name."""
  kept = json.loads((results / "accelerator.json").read_text(encoding="utf-8"))
  lines = []
  for name in names:
    found = kept[name]
    cells = ["" if found[column] is None else f"{found[column]:,}" for column in _COLUMNS]
    lines.append([name.replace("_", " "), *cells])
  return markdown_table(["", *_COLUMNS.values()], lines)


def planned_table(names: list[str], results: pathlib.Path) -> str:
  """Returns a Markdown table of a step by `--mode=plan` and by XLA's program, with a row for each name."""
  kept = json.loads((results / "accelerator.json").read_text(encoding="utf-8"))
  lines = []
  for name in names:
    found = kept[name]
    gigabytes = found["gigabytes_of_arguments"] + found["gigabytes_of_temporaries"]
    pairs = (found["planned_seconds"], found["predicted_seconds"]), (found["planned_gigabytes"], gigabytes)
    lines.append([f"`{name}`", *(f"{value:.3g}" for pair in pairs for value in pair)])
  return markdown_table(["preset", "seconds: plan", "program", "GB: plan", "program"], lines)


def serving_table(_: list[str], results: pathlib.Path) -> str:
  """Returns a Markdown table of what benchmarks.serving measured: medians over rounds."""
  columns = (
    *("encoder", "route", "clients", "requests a second"),
    *("median ms", "99th percentile ms", "CPU ms each"),
  )
  lines = []
  for run in json.loads((results / "serving.json").read_text())["runs"]:
    for row in run["rows"]:
      medians = [row[key] for key in ("per_second", "p50_ms", "p99_ms", "cpu_ms")]
      figures = [f"{median:,.{int(median < 10)}f}" for median in medians]
      lines.append([_ENCODERS.get(run["run"], "bag"), f"`{row['path']}`", str(row["clients"]), *figures])
  return markdown_table(columns, lines)


def hybrid_cost_table(_: list[str], results: pathlib.Path) -> str:
  """Returns a Markdown table of what benchmarks.hybrid_cost measured."""
  lines = []
  kept = json.loads((results / "hybrid_cost.json").read_text())
  for name, found in sorted(kept.items(), key=lambda item: item[1].get("ms_a_text", 0)):
    of_many = found["ms_a_text"] if "ms_a_text" in found else 1e3 / found["texts_a_second"]
    fit = f"{found['fit_seconds']:.1f}" if "fit_seconds" in found else ""
    data = f", {found['data_GB']:.1f}" if "data_GB" in found else ""
    times = [f"{found['open_seconds']:.1f}", fit, f"{of_many:.2f}", f"{found['ms_alone']:.1f}"]
    lines.append([name, *times, f"{found['peak_GB']:.1f}{data}"])
  return markdown_table(["", "open, s", "fit, s", "ms, one of many", "ms, alone", "GB, of that data"], lines)


def annif_table(names: list[str], results: pathlib.Path) -> str:
  """Returns a Markdown table of what benchmarks.annif measured on a corpus, in percent, minutes and GB."""
  rows = json.loads((results / f"annif_{names[0]}.json").read_text(encoding="utf-8"))["rows"]
  metrics = ("F1@5", "NDCG@10", "Precision@1")
  best = {metric: max(row[metric] for row in rows.values()) for metric in metrics}
  lines = []
  for name, row in rows.items():
    mark = {metric: "**" * (row[metric] == best[metric]) for metric in metrics}
    cells = [f"{mark[metric]}{100 * row[metric]:.1f}{mark[metric]}" for metric in metrics]
    lines.append([_BESIDE_ANNIF[name], *cells, f"{row['minutes']:.1f}", f"{row['GB']:.1f}"])
  return markdown_table(["", "F1@5", "nDCG@10", "P@1", "minutes", "GB"], lines)


def learning_table(_: list[str], results: pathlib.Path) -> str:
  """Returns a Markdown table of what benchmarks.learning measured, a row for each set, in percent."""
  metrics, lines = ("P@1", "P@5", "PSP@5", "R@100"), []
  for path in sorted((results / "learning").glob("*.json")):
    found = json.loads(path.read_text(encoding="utf-8"))
    runs = [found["test"].get(run) for run in ("half", "learnt", "trained on", "full")]
    cells = [" / ".join(f"{100 * run[metric]:.1f}" if run else "–" for run in runs) for metric in metrics]
    times = [found["seconds"].get(part) for part in ("learn", "train_trained on", "train_full")]
    seconds = " / ".join(f"{part:.0f}" if part else "–" for part in times)
    new = []
    for once in (found["after"]["1"], found["after"]["1, near"]):
      shares = [f"{100 * once[curve]:.0f}" for curve in ("no learning", "learn only") if curve in once]
      new.append(f"{' / '.join(shares)} of {once['cases']:,}" if shares else "")
    lines.append([found["set"], *cells, seconds, *new])
  return markdown_table(["", *metrics, "seconds", "new labels", "of them near"], lines)
