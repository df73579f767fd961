"""Evaluates the last step of finished claim runs on the rows that they learned from, beside test rows.

  python -m benchmarks.training_rows runs/claims/losses/{decoupled_softmax,soft_top_5_alpha_1,unit_*}-1

The runs are those of experiments.claims.run. It trains no row again that docs/results/ has: delete its file
before. Tells whether a loss fails to fit its training points or to generalise from them; "possible" is what a
ranking without an error gets. Writes docs/results/claim_training_rows.json, which the mark
`<!-- claim: training_rows METRIC ... -->` in a page of docs/ shows.
"""

import json
import pathlib

import numpy as np
import scipy.sparse as sp

from benchmarks import flags
from xmc_jax import metrics
from xmc_jax.batching import ragged
from xmc_jax.experiments.claims import run as claims
from xmc_jax.runs import evaluate
from xmc_jax.runs import run as runs
from xmc_jax.runs.ranking import by_products

_METRICS = ("P@1", "P@5", "R@10", "R@100")


def best_possible(truth: sp.csr_matrix) -> dict[str, float]:
  """Returns the metrics of a ranking that has the labels of each row of `truth` `[n, L]` first."""
  labels = ragged.of_matrix(truth, np.arange(truth.shape[0]))
  return metrics.evaluate(labels.padded(labels.counts.max(initial=1)), truth, ks=(1, 5, 10, 100))


def metrics_of(folder: pathlib.Path) -> dict[str, float]:
  """Returns a run's metrics and the possible ones, as training_P@5 and possible_training_P@5."""
  run, found = runs.reopen(folder), {}
  trained = run.trained(last=True)
  rank = by_products(trained)
  for name, split in {"training": run.data.train, "test": run.dataset.test}.items():
    queries = evaluate.embed_split(trained, split)
    means = evaluate.score(run, split, evaluate.rank_split(run, rank, queries, split))
    possible = best_possible(split.unfiltered_positives)
    for metric in _METRICS:
      found |= {f"{name}_{metric}": means[metric], f"possible_{name}_{metric}": possible[metric]}
  return found


def main() -> None:
  rows: dict[str, list[dict[str, float]]] = {}
  for folder in flags.parse(__doc__, folders="runs").runs:
    found = metrics_of(folder)
    rows.setdefault(f"{folder.parent.name}_{folder.name.rpartition('-')[0]}", []).append(found)
    print(folder, json.dumps({name: round(100 * value, 1) for name, value in found.items()}), flush=True)
  claims.keep("training_rows", rows)


if __name__ == "__main__":
  main()
