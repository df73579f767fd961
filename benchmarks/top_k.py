"""Speed of exact search, ours against faiss: the 100 labels of largest inner product with each query.

Needs faiss-cpu, which the project's own environment does not have:

  python -m venv .venv-bench && .venv-bench/bin/pip install -e ".[bench]"
  PYTHONPATH=. .venv-bench/bin/python benchmarks/top_k.py

Ours is `retrieval.search` as evaluation calls it, on a mesh of one device and from host arrays; theirs is
`IndexFlatIP.search` on an index built before. Vectors are normal random numbers in float32. All queries are
given at once, and both run in one process on two threads, taking turns; the medians are over --rounds turns.
First the results are checked: scores agree to 1e-5 of the largest, and ids agree wherever scores do not tie.
The first call, which compiles, is reported separately. `wall` is what a user waits for; `cpu`, the time of
all threads, varies less on a busy machine.
"""

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "2")

import faiss
import numpy as np
import paired_timing
import roofline

from xmc_jax import retrieval
from xmc_jax.distributed import sharding

AGREE = 1e-5


class Ours:
  name = "xmc_jax"

  def __init__(self, queries, labels, k):
    self._inputs, self._devices = (queries, labels, k), sharding.make()
    start = time.perf_counter()
    self.run()
    print(f"first call {time.perf_counter() - start:.1f} s", flush=True)

  def run(self):
    found = retrieval.search(*self._inputs, devices=self._devices)
    return found.scores, found.ids


class Faiss:
  name = "faiss"

  def __init__(self, queries, labels, k):
    self._queries, self._k = queries, k
    self._index = faiss.IndexFlatIP(labels.shape[1])
    self._index.add(labels)

  def run(self):
    return self._index.search(self._queries, self._k)


def check_equal(ours, theirs):
  """Exits with a message if scores differ, or if ids differ without a tie.

  Rounding may swap neighbours with nearly equal scores, and choose another last label. So an id may differ
  only next to a nearly equal score, or at the end of the row.
  """
  (scores, ids), (their_scores, their_ids) = ours.run(), theirs.run()
  difference = np.abs(scores - their_scores).max() / np.abs(their_scores).max()
  other = ids != their_ids
  gaps = -np.diff(their_scores, axis=1, append=-np.inf)  # distance to the next score
  ties = np.minimum(gaps, np.roll(gaps, 1, axis=1)) <= AGREE * np.abs(their_scores).max()
  ties[:, -1] = True  # the next score is unknown
  wrong = np.sum(other & ~ties)
  if not difference <= AGREE or wrong:
    raise SystemExit(f"not the same: scores differ by {difference:.2e}, {wrong} ids without a tie")
  print(f"scores agree to {difference:.0e}; {np.sum(other)} of {ids.size:,} ids differ, at ties", flush=True)


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--num_queries", type=int, default=5000)
  parser.add_argument("--num_labels", type=int, default=100_000)
  parser.add_argument("--dim", type=int, default=128)
  parser.add_argument("--k", type=int, default=100)
  parser.add_argument("--rounds", type=int, default=7)
  options = parser.parse_args()

  faiss.omp_set_num_threads(2)
  rng = np.random.default_rng(0)
  queries, labels = (
    rng.standard_normal((rows, options.dim), np.float32) for rows in (options.num_queries, options.num_labels)
  )
  print(f"top {options.k} of {len(queries):,} queries in {len(labels):,} x {options.dim}, float32")
  systems = [kind(queries, labels, options.k) for kind in (Ours, Faiss)]
  check_equal(*systems)
  seconds = paired_timing.compare(*systems, options.rounds)
  roofline.say_limit(options.num_queries * options.num_labels * options.dim, seconds, "the scores' products")


if __name__ == "__main__":
  main()
