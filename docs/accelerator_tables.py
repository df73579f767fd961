"""Makes tables of what benchmarks.accelerator predicts and measures.

docs/results/accelerator.json is what `compiled` keeps; accelerator_a.json, _b and _c are those of `suite`.
"""

import json
import pathlib

_COLUMNS = {
  "predicted_seconds": "predicted seconds",
  "gigabytes_of_products": "GB of products",
  "gigabytes_of_the_rest": "GB of everything else",
  "kernels": "kernels",
  "gigabytes_of_temporaries": "GB of temporaries",
}
# What the suite measures: command, phase, figure, what it is, and what is predicted: a text, or the name of a
# compiled program, whose seconds they are.
_SUITE = (
  ("a", "ceilings", "teraflops_of_bfloat16_operands", "TFLOP/s of bfloat16 products", "790"),
  ("a", "ceilings", "teraflops_bf16x3", "TFLOP/s of float32 in three bfloat16 products", "260"),
  ("a", "ceilings", "teraflops_float32", "TFLOP/s of float32 products", "67"),
  ("a", "ceilings", "terabytes_copied", "TB/s copied", "4.3"),
  ("a", "dexml_131k", "step_seconds", "seconds of a step, 131,072 labels", "dexml_131k_uncached"),
  ("a", "dexml_131k", "compile_seconds", "seconds to compile it", "56 to 84 on two cores"),
  ("a", "dexml_131k", "gigabytes_at_most", "GB at most", "93"),
  ("b", "peer", "times_as_fast", "times as fast as PyTorch", ""),
  ("b", "dexml_1_3m", "step_seconds", "seconds of a step, 1.3 million labels", "dexml_1.3m_after"),
  ("b", "dexml_131k_real_widths", "step_seconds", "seconds of a step, three widths and dropout", ""),
  ("b", "soft_top_k_1_3m", "step_seconds", "seconds of a step, 1.3 million labels, SoftTop-5", ""),
  ("c", "search_and_embedding", "queries_a_second_block_4096", "queries a second of 1 million × 768", ""),
  ("c", "clusters", "later_seconds", "seconds for 32,768 clusters of 1 million × 768", ""),
)


def suite_table(_: list[str], results: pathlib.Path) -> str:
  """Returns a Markdown table of the suite's figures: predicted, and measured where it has run."""
  compiled = json.loads((results / "accelerator.json").read_text(encoding="utf-8"))
  kept, lines = {}, ["| phase | what | predicted | measured |", "|---|---|---|---|"]
  for command in "abc":
    file = results / f"accelerator_{command}.json"
    kept[command] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
  for command, phase, figure, what, predicted in _SUITE:
    expected = compiled[predicted]["predicted_seconds"] if predicted in compiled else predicted
    measured = kept[command].get(phase, {}).get(figure, "")
    lines.append(f"| {command}: {phase} | {what} | {expected} | {measured} |")
  return "\n".join(lines) + "\n"


def compiled_table(names: list[str], results: pathlib.Path) -> str:
  """Returns a Markdown table with a row for each name, and a last column for what a device measured."""
  kept = json.loads((results / "accelerator.json").read_text(encoding="utf-8"))
  lines = [
    f"| | {' | '.join(_COLUMNS.values())} | teraflops | measured seconds |",
    f"|---|{'---|' * (len(_COLUMNS) + 2)}",
  ]
  for name in names:
    found = kept[name]
    cells = ["" if found[column] is None else f"{found[column]:,}" for column in _COLUMNS]
    flops = ", ".join(f"{number:,} {kind}" for kind, number in sorted(found["teraflops"].items()))
    measured = found.get("measured_seconds", "")
    lines.append(f"| {name.replace('_', ' ')} | {' | '.join(cells)} | {flops} | {measured} |")
  return "\n".join(lines) + "\n"


def planned_table(names: list[str], results: pathlib.Path) -> str:
  """Returns a Markdown table of a step by `--mode=plan` and by XLA's program, with a row for each name."""
  kept = json.loads((results / "accelerator.json").read_text(encoding="utf-8"))
  lines = [
    "| preset | seconds: plan | program | plan / program | GB: plan | program | plan / program |",
    "|---|---|---|---|---|---|---|",
  ]
  for name in names:
    found = kept[name]
    gigabytes = found["gigabytes_of_arguments"] + found["gigabytes_of_temporaries"]
    pairs = (found["planned_seconds"], found["predicted_seconds"]), (found["planned_gigabytes"], gigabytes)
    cells = [f"{plan:.3g} | {program:.3g} | {plan / program:.2f}" for plan, program in pairs]
    lines.append(f"| `{name}` | {' | '.join(cells)} |")
  return "\n".join(lines) + "\n"
