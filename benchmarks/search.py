"""Speed of search by inner product: exact beside faiss, and with ScaNN's index beside exact.

  .venv-bench/bin/python -m benchmarks.search exact --rounds=11
  .venv-bench/bin/python -m benchmarks.search shortlists

  exact       `retrieval.search` as evaluation calls it, on a mesh of one device and from host arrays, beside
              `IndexFlatIP.search` on an index built before; 5,000 normal random queries
  shortlists  `refresh.shortlist` with 'scann', which tunes itself to a recall of 0.95, and with 'exact';
              faiss's flat index is the reference for recall. An index is built and tuned each turn. 20,000
              unit vectors around common centres; their variance falls over the dimensions about as that of
              MiniLM's embeddings of the bundled titles

100 labels of 100,000 for each query, in float32, in one process on two threads, in turns.
"""

import os
import re
import statistics
import time

os.environ.setdefault("OMP_NUM_THREADS", "2")

import faiss
import numpy as np

from benchmarks import flags, paired_timing
from xmc_jax import console, refresh, retrieval
from xmc_jax.distributed import sharding

_AGREE = 1e-5
_CENTRES = 3000


class Exact:
  name = "xmc_jax"

  def __init__(self, queries, labels, k):
    self._inputs, self._devices = (queries, labels, k), sharding.make()
    self.run()  # compiles

  def run(self):
    found = retrieval.search(*self._inputs, devices=self._devices)
    return found.scores, found.ids


class FaissIndex:
  name = "faiss"

  def __init__(self, queries, labels, k):
    self._queries, self._k = queries, k
    self._index = faiss.IndexFlatIP(labels.shape[1])
    self._index.add(labels)

  def run(self):
    return self._index.search(self._queries, self._k)


def check_equal(ours, theirs):
  """Exits with a message if scores differ; ids may, where rounding decides between nearly equal scores."""
  (scores, ids), (their_scores, their_ids) = ours.run(), theirs.run()
  difference = np.abs(scores - their_scores).max() / np.abs(their_scores).max()
  if not difference <= _AGREE:
    raise SystemExit(f"not the same: scores differ by {difference:.2e}")
  print(
    f"scores agree to {difference:.0e}; {np.sum(ids != their_ids)} of {ids.size:,} ids differ", flush=True
  )


def compare_exact(options):
  rng = np.random.default_rng(0)
  shapes = ((options.num_queries or 5000, options.dim), (options.num_labels, options.dim))
  queries, labels = (rng.standard_normal(shape, np.float32) for shape in shapes)
  systems = [kind(queries, labels, options.k) for kind in (Exact, FaissIndex)]
  check_equal(*systems)
  paired_timing.compare(*systems, options.rounds)


class Shortlist:
  """Runs `refresh.shortlist`; returns ids, seconds to build an index, which it says, and to search."""

  def __init__(self, backend):
    self.name, self._backend = f"xmc_jax {backend}", backend

  def run(self, queries, labels, k):
    said, console.say = [], lambda line: said.append(line)
    start = time.perf_counter()
    ids = refresh.shortlist(queries, labels, k, backend=self._backend)
    seconds = time.perf_counter() - start
    build = sum(map(float, re.findall(r"(?:built|tuned) in (\S+) s", " ".join(said))))
    return ids, build, seconds - build


def recall(found, exact):
  """Returns the share of the exact ids that was found."""
  return sum(np.intersect1d(a, b).size for a, b in zip(found, exact)) / exact.size


def clustered(rng, centres, count):
  """Returns `[count, D]` unit vectors around `centres` `[C, D]`, with noise 0.7 times their spread."""
  noise = 0.7 * centres.std(axis=0) * rng.standard_normal((count, centres.shape[1]), np.float32)
  vectors = centres[rng.integers(0, len(centres), count)] + noise
  return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def compare_shortlists(options):
  rng, k = np.random.default_rng(0), options.k
  scales = np.arange(1, options.dim + 1, dtype=np.float32) ** -0.35
  centres = scales * rng.standard_normal((_CENTRES, options.dim), np.float32)
  queries, labels = (clustered(rng, centres, n) for n in (options.num_queries or 20_000, options.num_labels))
  exact = FaissIndex(queries, labels, k).run()[1]
  systems = [Shortlist("scann"), Shortlist("exact")]
  systems[1].run(queries[:1000], labels, k)  # compiles
  turns = [[system.run(queries, labels, k) for system in systems] for _ in range(options.rounds)]
  for place, system in enumerate(systems):
    found = [turn[place] for turn in turns]
    ratios = [sum(turn[place][1:]) / sum(turn[0][1:]) for turn in turns]
    build, search = (statistics.median(each[i] for each in found) for i in (1, 2))
    print(
      f"{system.name}: build {build:.1f} s, search {search:.1f} s; over ScaNN's "
      f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}); "
      f"recall {min(recall(each[0], exact) for each in found):.3f}",
      flush=True,
    )


_PARTS = {"exact": compare_exact, "shortlists": compare_shortlists}


def main():
  options = flags.parse(__doc__, _PARTS, num_queries=int, num_labels=100_000, dim=128, k=100, rounds=3)
  faiss.omp_set_num_threads(2)
  _PARTS[options.part](options)


if __name__ == "__main__":
  main()
