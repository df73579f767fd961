"""Speed of the ranking metrics: 20,000 rows of 100 predictions among 100,000 labels.

  PYTHONPATH=.:benchmarks python benchmarks/metrics.py

Prints one line for P, nDCG and R at 1, 3 and 5, and one that adds their propensity-scored forms and the
cutoffs 10 and 100. The first 300 rows are checked against sums computed row by row. The limit is the time to
copy the predictions.
"""

import argparse
import statistics
import time

import numpy as np
import scipy.sparse as sp
from roofline import say_bandwidth

from xmc_jax import metrics


def make(num_rows: int, num_labels: int, depth: int) -> tuple[np.ndarray, sp.csr_matrix]:
  """Returns predictions `[N, K]` without repeats, and about 6 true labels per row, half of them predicted."""
  rng = np.random.default_rng(0)
  starts = rng.integers(0, num_labels, (num_rows, 1))
  steps = rng.permuted(np.tile(np.arange(depth) * 7, (num_rows, 1)), axis=1)
  ids = ((starts + steps) % num_labels).astype(np.int32)
  rows = np.repeat(np.arange(num_rows), 6)
  columns = np.concatenate([ids[:, ::37], rng.integers(0, num_labels, (num_rows, 3))], axis=1).ravel()
  truth = sp.csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), (num_rows, num_labels))
  truth.sum_duplicates()
  return ids, truth


def check(ids: np.ndarray, truth: sp.csr_matrix) -> None:
  """Checks P@5 and R@5 against sums computed row by row."""
  found = metrics.evaluate(ids, truth, ks=(5,))
  true = [set(row.indices.tolist()) for row in truth]
  hits = [len(known & set(row[:5].tolist())) for row, known in zip(ids, true)]
  np.testing.assert_allclose(found["P@5"], np.mean(hits) / 5, rtol=1e-12)
  np.testing.assert_allclose(found["R@5"], np.mean([hit / len(known) for hit, known in zip(hits, true)]))


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--num_rows", type=int, default=20_000)
  parser.add_argument("--num_labels", type=int, default=100_000)
  parser.add_argument("--depth", type=int, default=100)
  parser.add_argument("--rounds", type=int, default=15)
  given = parser.parse_args()
  ids, truth = make(given.num_rows, given.num_labels, given.depth)
  check(ids[:300], truth[:300])
  scores = metrics.inverse_propensity(truth, 0.55, 1.5)
  for what, options in (
    ("P, nDCG, R at 1, 3, 5", {}),
    (
      "with propensities, at 1, 3, 5, 10, 100",
      {"ks": (1, 3, 5, 10, 100), "inverse_propensity": scores},
    ),
  ):
    seconds = []
    for _ in range(given.rounds):
      start = time.perf_counter()
      metrics.evaluate(ids, truth, **options)
      seconds.append(time.perf_counter() - start)
    print(
      f"{what}: median {1e3 * statistics.median(seconds):.0f} ms, best {1e3 * min(seconds):.0f} ms",
      flush=True,
    )
  say_bandwidth(2 * ids.nbytes, statistics.median(seconds), "reading and writing the predictions once")


if __name__ == "__main__":
  main()
