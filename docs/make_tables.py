"""Results of runs as small JSON files, and the tables in docs/ that are generated from them.

  python docs/make_tables.py collect RUN NAME "what it is"    # docs/results/NAME.json from a run's folder
  python docs/make_tables.py write                            # fill the tables in docs/*.md and README.md

A table stands between `<!-- table: NAME NAME ... -->` and `<!-- end -->`; each NAME is a row.
"""

import json
import pathlib
import re
import sys

_DOCS = pathlib.Path(__file__).parent
_TESTED = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@10", "R@100")
_BLOCK = re.compile(r"(<!-- table: ([^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)


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


def write() -> None:
  """Fills every marked table."""
  for path in (*_DOCS.glob("*.md"), _DOCS.parent / "README.md"):
    text = path.read_text()
    filled = _BLOCK.sub(lambda found: found[1] + table(found[2].split()) + found[3], text)
    if filled != text:
      path.write_text(filled)


if __name__ == "__main__":
  if sys.argv[1:2] == ["collect"] and len(sys.argv) == 5:
    collect(pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4])
  elif sys.argv[1:] == ["write"]:
    write()
  else:
    sys.exit(__doc__)
