"""Times of work on the host: ranking metrics, random walks, the start of the command line.

PYTHONPATH=. python benchmarks/host.py metrics
PYTHONPATH=. python benchmarks/host.py walks               # some 10 minutes on one core; --share=0.05
PYTHONPATH=. python benchmarks/host.py startup

metrics  20,000 rows of 100 predictions among 100,000 labels: P, nDCG and R at 1, 3 and 5; then their
         propensity-scored forms and the cutoffs 10 and 100, too. P@5 and R@5 of 300 rows are checked
walks    over a random graph of RAMEN's largest size: 2.5 million anchors, 27 million edges, some anchors
         with many more edges than others; and the edges that the walks add
startup  --help, a config error and a missing run, each a new process, in turns with an interpreter that
         imports only absl and ml_collections; without the first turn, which fills the disk cache
"""

import argparse
import functools
import pathlib
import resource
import statistics
import subprocess
import sys
import time

import numpy as np
import scipy.sparse as sp

from xmc_jax import metrics
from xmc_jax.refresh import graph_walks

_ROOT = pathlib.Path(__file__).parents[1]
_COMMANDS = {
  "absl and ml_collections": ["-c", "import absl.app, absl.flags, ml_collections.config_flags"],
  "--help": ["-m", "xmc_jax.main", "--help"],
  "a wrong key": ["-m", "xmc_jax.main", "--config=experiments/dexml.py", "--config.train.batchsize=3"],
  "a wrong value": ["-m", "xmc_jax.main", "--config=experiments/dexml.py", "--config.train.batch_size=-3"],
  "no such run": ["-m", "xmc_jax.main", "--mode=predict", "--workdir=no/such/run", "--input=none.txt"],
}


def seconds_of(work) -> float:
  start = time.perf_counter()
  work()
  return time.perf_counter() - start


def time_metrics(given) -> None:
  """Times metrics of predictions without repeats, and about 6 true labels per row, half of them predicted."""
  num_rows, num_labels, depth = int(20_000 * given.share), 100_000, 100
  rng = np.random.default_rng(0)
  steps = rng.permuted(np.tile(np.arange(depth) * 7, (num_rows, 1)), axis=1)
  ids = ((rng.integers(0, num_labels, (num_rows, 1)) + steps) % num_labels).astype(np.int32)
  columns = np.concatenate([ids[:, ::37], rng.integers(0, num_labels, (num_rows, 3))], axis=1).ravel()
  pairs = (np.repeat(np.arange(num_rows), 6), columns)
  truth = sp.csr_matrix((np.ones(len(columns), np.float32), pairs), (num_rows, num_labels))
  truth.sum_duplicates()
  found = metrics.evaluate(ids[:300], truth[:300], ks=(5,))
  true = [set(row.indices.tolist()) for row in truth[:300]]
  hits = [len(known & set(row[:5].tolist())) for row, known in zip(ids, true)]
  np.testing.assert_allclose(found["P@5"], np.mean(hits) / 5, rtol=1e-12)
  np.testing.assert_allclose(found["R@5"], np.mean([hit / len(known) for hit, known in zip(hits, true)]))
  inverse = metrics.inverse_propensity(truth, 0.55, 1.5)
  for what, options in (
    ("P, nDCG, R at 1, 3, 5", {}),
    ("with propensities, at five k", {"ks": (1, 3, 5, 10, 100), "inverse_propensity": inverse}),
  ):
    work = functools.partial(metrics.evaluate, ids, truth, **options)
    taken = [seconds_of(work) for _ in range(given.rounds)]
    print(f"{what}: median {1e3 * statistics.median(taken):.0f} ms, best {1e3 * min(taken):.0f} ms")


def time_walks(given) -> None:
  num_points, num_anchors, num_edges = (
    int(given.share * size) for size in (1_800_000, 2_500_000, 27_000_000)
  )
  rng = np.random.default_rng(0)
  rows, anchors = rng.integers(0, num_points, num_edges), num_anchors * rng.random(num_edges) ** 2
  pairs = (rows, anchors.astype(np.int64))
  edges = sp.csr_matrix((np.ones(num_edges, bool), pairs), shape=(num_points, num_anchors))
  edges.sum_duplicates()
  start = time.perf_counter()
  found = graph_walks.random_walks(edges)
  print(f"{edges.nnz:,} edges; walks: {time.perf_counter() - start:.0f} s, {found.nnz:,} kept", flush=True)
  start = time.perf_counter()
  linked = graph_walks.linked(edges, found)
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
  print(f"edges: {time.perf_counter() - start:.0f} s, {linked.nnz:,} with those of walks; peak {peak:.2f} GB")


def time_startup(given) -> None:
  found = {name: [] for name in _COMMANDS}
  settings = {"cwd": _ROOT, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
  for _ in range(1 + given.rounds):
    for name, arguments in _COMMANDS.items():
      work = functools.partial(subprocess.run, [sys.executable, *arguments], **settings)
      found[name].append(seconds_of(work))
  for name, seconds in found.items():
    print(f"{name}: median {statistics.median(seconds[1:]):.2f} s, worst {max(seconds[1:]):.2f} s")


_WORK = {"metrics": time_metrics, "walks": time_walks, "startup": time_startup}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("what", choices=_WORK)
  parser.add_argument("--share", type=float, default=1.0, help="of the size")
  parser.add_argument("--rounds", type=int, default=7)
  given = parser.parse_args()
  _WORK[given.what](given)


if __name__ == "__main__":
  main()
