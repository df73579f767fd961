"""Times of work on the host: ranking metrics, random walks, the start of the command line.

python -m benchmarks.host metrics
python -m benchmarks.host walks               # some 10 minutes on one core; --share=0.05
python -m benchmarks.host startup

metrics  20,000 rows of 100 predictions among 100,000 labels: P, nDCG and R at 1, 3 and 5; then bootstrap
         intervals of these and of their propensity-scored forms. P@5 and R@5 of 300 rows are checked
walks    over a random graph of RAMEN's largest size: 2.5 million anchors, 27 million edges, some anchors
         with many more edges than others; and the edges that the walks add
startup  --help, and errors in flags and configs, each a new process, in turns; without the first turn, which
         fills the disk cache
"""

import functools
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np
import scipy.sparse as sp

from benchmarks import children, flags
from benchmarks.paired_timing import seconds_of
from xmc_jax import metrics
from xmc_jax.refresh import graph_walks

_ROOT = pathlib.Path(__file__).parents[1]
_COMMANDS = {
  "--help": ["-m", "xmc_jax.main", "--help"],
  "a wrong key": ["-m", "xmc_jax.main", "--config=experiments/dexml.py", "--config.train.batchsize=3"],
  "an unknown flag": ["-m", "xmc_jax.main", "--batchsize=3"],
  "an unknown preset": ["-m", "xmc_jax.main", "--config=experiments/dexml.py:debain"],
}


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
  for what, work in (
    ("P, nDCG, R at 1, 3, 5", lambda: metrics.evaluate(ids, truth)),
    ("intervals", lambda: metrics.bootstrap_intervals(ids, truth, inverse_propensity=inverse)),
  ):
    taken = [seconds_of(work) for _ in range(given.rounds)]
    print(f"{what}: median {1e3 * statistics.median(taken):.0f} ms, best {1e3 * min(taken):.0f} ms")


def time_walks(given) -> None:
  sizes = (1_800_000, 2_500_000, 27_000_000)
  num_points, num_anchors, num_edges = (int(given.share * size) for size in sizes)
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
  peak = children.peak_bytes("self") / 1e9
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


_PARTS = {"metrics": time_metrics, "walks": time_walks, "startup": time_startup}


def main() -> None:
  given = flags.parse(__doc__, _PARTS, share=1.0, rounds=7)
  _PARTS[given.part](given)


if __name__ == "__main__":
  main()
