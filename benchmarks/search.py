"""Speed of exact search by inner product, beside faiss.

  .venv-bench/bin/python -m benchmarks.search --rounds=11

`retrieval.search` as evaluation calls it, on a mesh of one device and from host arrays, beside
`IndexFlatIP.search` on an index built before: 100 labels of 100,000 for each of 5,000 normal random queries,
in float32, in one process on two threads, in turns.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "2")

import faiss
import numpy as np

from benchmarks import flags, paired_timing
from benchmarks.paired_timing import System
from xmc_jax import retrieval
from xmc_jax.distributed import sharding

_AGREE = 1e-5


def exact(queries, labels, k) -> System:
  devices = sharding.make()

  def run():
    found = retrieval.search(queries, labels, k, devices=devices)
    return found.scores, found.ids

  run()  # compiles
  return System("xmc_jax", run)


def faiss_index(queries, labels, k) -> System:
  index = faiss.IndexFlatIP(labels.shape[1])
  index.add(labels)
  return System("faiss", lambda: index.search(queries, k))


def check_equal(ours, theirs):
  """Exits with a message if scores differ; ids may, where rounding decides between nearly equal scores."""
  (scores, ids), (their_scores, their_ids) = ours.run(), theirs.run()
  difference = np.abs(scores - their_scores).max() / np.abs(their_scores).max()
  if not difference <= _AGREE:
    raise SystemExit(f"not the same: scores differ by {difference:.2e}")
  print(
    f"scores agree to {difference:.0e}; {np.sum(ids != their_ids)} of {ids.size:,} ids differ", flush=True
  )


def main():
  options = flags.parse(__doc__, num_queries=5000, num_labels=100_000, dim=128, k=100, rounds=3)
  faiss.omp_set_num_threads(2)
  rng = np.random.default_rng(0)
  shapes = ((options.num_queries, options.dim), (options.num_labels, options.dim))
  queries, labels = (rng.standard_normal(shape, np.float32) for shape in shapes)
  systems = [kind(queries, labels, options.k) for kind in (exact, faiss_index)]
  check_equal(*systems)
  paired_timing.compare(*systems, options.rounds)


if __name__ == "__main__":
  main()
