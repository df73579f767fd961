"""Trains the rows of a claim, every seed of each, and keeps what came out.

  python -m experiments.claims.run t_star random_pairs --seeds=3
  python -m experiments.claims.run losses negatives --seeds=3     # bundled data, two hours on two cores

Finished runs are not trained again: stop it, and give the same command. `docs/results/claim_NAME.json` holds
the last step's test metrics of every seed, which are not made again either while a row's settings stay.
`python docs/make_tables.py write` makes the tables of docs/claims/ of them.
"""

import argparse
import hashlib
import json
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np

from xmc_jax import data, metrics
from xmc_jax.experiments.claims import synthetic
from xmc_jax.experiments.claims.presets import CLAIMS
from xmc_jax.runs import evaluate

_ROOT = pathlib.Path(__file__).parents[2]
_RESULTS = _ROOT / "docs" / "results"
RUNS = _ROOT / "runs" / "claims"
_PAPERS = "--config.eval.scores=fused"  # claims are of the papers' own rankings
_KEPT = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@10", "R@100")
LAST = "report/metrics_last.json"  # what the last step of a run gave
_MANY = 5  # a point with more labels than that has many

Metrics = dict[str, Any]


def train(claim: str, row: str, seed: int, runs: pathlib.Path, extra: list[str]) -> dict[str, Metrics]:
  """One run, or what it gave before: by row of the table, which has one for each way to rank labels."""
  workdir = runs / claim / f"{row}-{seed}"
  if not (workdir / "report" / "seconds.json").exists():  # the last that a run writes
    config = f"--config=experiments/claims/presets.py:{claim}-{row}"
    print(f"{claim}: {row}, seed {seed}", file=sys.stderr, flush=True)
    _main(config, f"--workdir={workdir}", _PAPERS, *extra, f"--config.train.seed={seed}")
  if not (workdir / LAST).exists():
    _main("--mode=evaluate", f"--workdir={workdir}", "--checkpoint=last")
  return {row + suffix: found for suffix, found in results(workdir).items()}


def _main(*flags: str) -> None:
  command = [sys.executable, "-m", "xmc_jax.main", *flags]
  subprocess.run(command, cwd=_ROOT, check=True, stdout=subprocess.DEVNULL)


def results(workdir: pathlib.Path) -> dict[str, Metrics]:
  """Returns what a finished run gave, by the suffix of each of its views: the last step's metrics as `last`.

  Of the first view there are also what labels with more than 100 training points, 10 to 100 and fewer add to
  P@1, the most and the least frequent tenth of the labels to P@5, `costs_and_curve`, and the weight of label
  frequency where it was chosen.
  """
  found: dict[str, Metrics] = {suffix: {"last": metrics} for suffix, metrics in _tested(workdir).items()}
  found[""] |= costs_and_curve(workdir)
  if (chosen := workdir / "frequency.json").exists():
    found[""]["log_frequency"] = json.loads(chosen.read_text())["weight"]
  return found


def _tested(workdir: pathlib.Path) -> dict[str, Metrics]:
  report = json.loads((workdir / LAST).read_text())
  thirds, deciles = report["slices"]["head_torso_tail"]["P@1"], report["slices"]["deciles"]["P@5"]
  by_frequency = {f"{part}_P@1": value for part, value in zip(("head", "torso", "tail"), thirds)}
  by_frequency |= {f"decile_{number}_P@5": deciles[number - 1] for number in (1, len(deciles))}
  by_source = {f"_by_{name}": found for name, found in report.get("by_source", {}).items()}
  kept = {
    view: {name: found[name] for name in _KEPT if name in found}
    for view, found in {"": report["metrics"], **by_source}.items()
  }
  kept[""] |= by_frequency | _of_many_labels(workdir)
  return kept


def _of_many_labels(workdir: pathlib.Path) -> Metrics:
  """Returns P@5 of the test points with more than five labels, where there are any."""
  truth = data.load_prepared(workdir / "data").test.unfiltered_positives
  rows = np.flatnonzero(np.diff(truth.indptr) > _MANY)
  if not len(rows):
    return {}
  ids = evaluate.read_predictions(workdir / "predictions" / "test_last.npz", 5).ids[rows]
  return {f"over_{_MANY}_labels_P@5": metrics.evaluate(ids, truth[rows], ks=(5,))["P@5"]}


def costs_and_curve(workdir: pathlib.Path) -> Metrics:
  """Returns a finished run's minutes, peak GB, and P@1 of validation rows over time."""
  seconds = json.loads((workdir / "report" / "seconds.json").read_text())
  lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  trained = sum(
    seconds[stage] for stage in seconds if stage in ("train", "walk") or stage.startswith("refresh_")
  )
  peak = max(line.get("memory/host_bytes", 0) for line in lines) / 1e9
  curve = [line["eval/P@1"] for line in lines if "eval/P@1" in line]
  return {"minutes": trained / 60, "GB": peak, "curve": curve}


def keep(claim: str, rows: dict[str, list[Metrics]]) -> None:
  """Writes docs/results/claim_NAME.json: metrics of every seed, by row, and a digest of each row's settings.

  Each seed is a line, and numbers have six decimals.
  """
  ordered = dict.fromkeys(name for row in CLAIMS.get(claim, ()) for name in _views(claim, row, rows))
  of_rows = ",\n".join(
    f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(_rounded(seed)) for seed in rows[name]) + "\n]"
    for name in ordered | rows
  )
  about = json.dumps({"claim": claim, "settings": _settings(claim)})
  (_RESULTS / f"claim_{claim}.json").write_text(f'{about[:-1]},\n"rows": {{\n{of_rows}\n}}}}\n')


def _rounded(metrics: Metrics) -> Metrics:
  return json.loads(json.dumps(metrics), parse_float=lambda number: round(float(number), 6))


def kept(claim: str) -> dict[str, list[Metrics]]:
  """Returns what a claim's file has of rows whose settings are the same as now: of each seed from 0."""
  path = _RESULTS / f"claim_{claim}.json"
  found = json.loads(path.read_text()) if path.exists() else {}
  settings = _settings(claim)
  same = [row for row in settings if found.get("settings", {}).get(row) == settings[row]]
  return {name: found["rows"][name] for row in same for name in _views(claim, row, found["rows"])}


def _views(claim: str, row: str, rows: dict[str, Any]) -> list[str]:
  """Returns the names of a row's results: its own, and those of each way to rank labels."""
  longer = [other for other in CLAIMS.get(claim, ()) if other.startswith(f"{row}_by_")]  # a row of its own
  own = [name for name in rows if name == row or name.startswith(f"{row}_by_")]
  return [name for name in own if not any(name == other or name.startswith(f"{other}_") for other in longer)]


def _settings(claim: str) -> dict[str, str]:
  """Returns a digest of the settings of each row of a claim."""
  rows = {row: json.dumps(settings, sort_keys=True) for row, settings in CLAIMS.get(claim, {}).items()}
  return {row: hashlib.sha256(settings.encode()).hexdigest()[:16] for row, settings in rows.items()}


def make_data(claim: str) -> None:
  """The synthetic sets, where they are not there yet."""
  folder = _ROOT / "data" / "claims"
  if claim == "t_star" and not (folder / "t_star" / "lbl.json").exists():
    synthetic.write_t_star(folder / "t_star")
  for count in (10_000, 100_000, 1_000_000) if claim == "random_pairs" else ():
    if not (folder / f"random_pairs_{count}" / "lbl.json").exists():
      synthetic.write_random_pairs(folder / f"random_pairs_{count}", count)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("claims", nargs="+", choices=sorted(CLAIMS))
  parser.add_argument("--seeds", type=int, default=3)
  parser.add_argument("--runs", type=pathlib.Path, default=RUNS)
  given, extra = parser.parse_known_args()
  for claim in given.claims:
    make_data(claim)
    rows = kept(claim)
    for seed in range(given.seeds):  # every row once, before any a second time
      for row in CLAIMS[claim]:
        if seed < len(rows.get(row, ())):
          continue
        for name, found in train(claim, row, seed, given.runs, extra).items():
          rows.setdefault(name, []).append(found)
        keep(claim, rows)


if __name__ == "__main__":
  main()
