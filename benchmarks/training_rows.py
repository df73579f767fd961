"""Evaluates the last step of finished claim runs on the rows that they learned from, beside test rows.

  python -m benchmarks.training_rows runs/claims/losses/{decoupled_softmax,soft_top_5_alpha_1,unit_*}-1

The runs are those of experiments.claims.run. It trains no row again that docs/results/ has: delete its file
before. Tells whether a loss fails to fit its training points or to generalise from them; "possible" is what a
ranking without an error gets. Writes docs/results/claim_training_rows.json, which the mark
`<!-- claim: training_rows METRIC ... -->` in a page of docs/ shows.
"""

import argparse
import json
import pathlib

from experiments.claims import run as claims
from xmc_jax.runs import evaluate
from xmc_jax.runs import run as runs
from xmc_jax.runs.ranking import plain_ranker

_METRICS = {"P@1": (1, True), "P@5": (5, True), "R@10": (10, False), "R@100": (100, False)}


def best_possible(truth) -> dict[str, float]:
  """Returns the metrics of a ranking that has a row's labels first; `truth` is `[n, L]` sparse."""
  counts = truth.getnnz(axis=1)
  counts = counts[counts > 0]
  return {
    name: float((counts.clip(max=k) / (k if of_k else counts)).mean()) for name, (k, of_k) in _METRICS.items()
  }


def metrics_of(folder: pathlib.Path) -> dict[str, float]:
  """Returns a run's metrics by the names of their rows, as training_P@5, and those that are possible."""
  run, found = runs.reopen(folder), {}
  params, extra_state, _ = run.trained(last=True)
  rank = plain_ranker(run, params, extra_state)
  for name, split in {"training": run.data.train, "test": run.dataset.test}.items():
    queries = evaluate.embed_split(run, params, extra_state, split)
    means = evaluate.score(run, split, evaluate.rank_split(run, rank, queries, split))
    possible = best_possible(split.unfiltered_positives)
    for metric in _METRICS:
      found |= {f"{name}_{metric}": means[metric], f"possible_{name}_{metric}": possible[metric]}
  return found


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN", help="CLAIM/ROW-SEED")
  rows: dict[str, list[dict[str, float]]] = {}
  for folder in parser.parse_args().runs:
    found = metrics_of(folder)
    rows.setdefault(f"{folder.parent.name}_{folder.name.rpartition('-')[0]}", []).append(found)
    print(folder, json.dumps({name: round(100 * value, 1) for name, value in found.items()}), flush=True)
  claims.keep("training_rows", rows)


if __name__ == "__main__":
  main()
