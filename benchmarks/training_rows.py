"""Evaluates the last step of finished runs on the rows that they learned from, beside held-out and test rows.

  python -m benchmarks.training_rows runs/claims/losses/soft_top_5_alpha_1-0 runs/claims/losses/softmax-0

Tells whether a loss fails to fit its training points or to generalise from them. Lines 'possible' have what a
ranking without an error gets.
"""

import argparse
import pathlib

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


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN", help="folders of finished runs")
  print(f"{'run':34}{'rows':12}" + "".join(f"{name:>8}" for name in _METRICS))
  for folder in parser.parse_args().runs:
    run = runs.reopen(folder)
    params, extra_state, _ = run.trained(last=True)
    rank = plain_ranker(run, params, extra_state)
    splits = {"training": run.data.train, "held-out": run.data.validation, "test": run.dataset.test}
    for name, split in splits.items():
      queries = evaluate.embed_split(run, params, extra_state, split)
      found = evaluate.score(run, split, evaluate.rank_split(run, rank, queries, split))
      for what, means in (("possible", best_possible(split.unfiltered_positives)), (folder.name, found)):
        print(f"{what:34}{name:12}" + "".join(f"{means[key]:8.1%}" for key in _METRICS), flush=True)


if __name__ == "__main__":
  main()
