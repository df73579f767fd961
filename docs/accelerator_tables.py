"""Makes tables of docs/results/accelerator.json, which benchmarks.accelerator.compiled keeps."""

import json
import pathlib

_COLUMNS = {
  "predicted_seconds": "predicted seconds",
  "gigabytes_of_products": "GB of products",
  "gigabytes_of_the_rest": "GB of everything else",
  "kernels": "kernels",
  "gigabytes_of_temporaries": "GB of temporaries",
}


def compiled_table(names: list[str], results: pathlib.Path) -> str:
  """Returns a Markdown table with a row for each name, and a last column for what a device measured."""
  kept = json.loads((results / "accelerator.json").read_text(encoding="utf-8"))
  lines = [
    f"| | {' | '.join(_COLUMNS.values())} | teraflops | measured seconds |",
    f"|---|{'---|' * (len(_COLUMNS) + 2)}",
  ]
  for name in names:
    found = kept[name]
    cells = [f"{found[column]:,}" for column in _COLUMNS]
    flops = ", ".join(f"{number:,} {kind}" for kind, number in sorted(found["teraflops"].items()))
    measured = found.get("measured_seconds", "")
    lines.append(f"| {name.replace('_', ' ')} | {' | '.join(cells)} | {flops} | {measured} |")
  return "\n".join(lines) + "\n"
