"""Speed of shortlists: for many queries, nearly all of the 100 labels with the largest inner products.

Needs faiss-cpu, hnswlib and scann:

  python -m venv .venv-bench && .venv-bench/bin/pip install -e ".[bench]"
  PYTHONPATH=. .venv-bench/bin/python benchmarks/shortlists.py

Ours are `refresh.shortlist` with the backends 'scann', which tunes itself to a recall of 0.95, and 'exact'.
Theirs are hnswlib, whose `ef` is raised by factors of sqrt(2) until its recall is 0.95 too, and faiss's flat
index, which is exact and is the reference for recall. All build and search a new index each turn, in one
process on two threads, in turns; the medians are over --rounds turns. For ScaNN, `build` includes its tuning.
`CPU` is the time of all threads, which varies less on a busy machine.

The vectors have unit length and lie around --centres common centres. Their variance falls over the dimensions
about as that of MiniLM's embeddings of the bundled titles.
"""

import argparse
import os
import re
import statistics
import time

os.environ.setdefault("OMP_NUM_THREADS", "2")

import faiss
import hnswlib
import numpy as np

from xmc_jax import console, refresh

RECALL = 0.95


class Ours:
  """Runs `refresh.shortlist`; reads the time to build its index from its messages."""

  def __init__(self, backend):
    self.name, self._backend = f"xmc_jax {backend}", backend

  def run(self, queries, labels, k):
    said, console.say = [], lambda line: said.append(line)
    start = clock()
    ids = refresh.shortlist(queries, labels, k, backend=self._backend)
    wall, cpu = clock() - start
    build = sum(map(float, re.findall(r"(?:built|tuned) in (\S+) s", " ".join(said))))
    return ids, build, wall - build, cpu


class Faiss:
  name = "faiss flat"

  def run(self, queries, labels, k):
    start = clock()
    index = faiss.IndexFlatIP(labels.shape[1])
    index.add(labels)
    built = clock()
    ids = index.search(queries, k)[1]
    build, search = built - start, clock() - built
    return ids, build[0], search[0], build[1] + search[1]


class Hnsw:
  """Runs hnswlib with `M` 16, built at `ef` 100; finds the search's `ef` in the first run, not timed."""

  name = "hnswlib"

  def __init__(self, exact):
    self._exact, self._ef = exact, 0

  def run(self, queries, labels, k):
    start = clock()
    index = hnswlib.Index("ip", labels.shape[1])
    index.init_index(len(labels), M=16, ef_construction=100)
    index.add_items(labels, num_threads=2)
    build = clock() - start
    if not self._ef:
      self._ef = self._widen(index, queries[:1000], k)
      self.name += f" (ef {self._ef})"
    index.set_ef(self._ef)
    start = clock()
    ids = index.knn_query(queries, k, num_threads=2)[0]
    search = clock() - start
    return ids, build[0], search[0], build[1] + search[1]

  def _widen(self, index, queries, k):
    for ef in k * 2.0 ** np.arange(0, 6, 0.5):
      index.set_ef(round(ef))
      if recall(index.knn_query(queries, k, num_threads=2)[0], self._exact[: len(queries)]) >= RECALL:
        break
    return round(ef)


def clock():
  """Returns wall-clock and CPU seconds."""
  return np.array([time.perf_counter(), time.process_time()])


def recall(found, exact):
  """Returns the share of the exact ids that was found."""
  return sum(np.intersect1d(a, b).size for a, b in zip(found, exact)) / exact.size


def clustered(rng, centres, count):
  """Returns `[count, D]` unit vectors around `centres` `[C, D]`, with noise 0.7 times their spread."""
  noise = 0.7 * centres.std(axis=0) * rng.standard_normal((count, centres.shape[1]), np.float32)
  vectors = centres[rng.integers(0, len(centres), count)] + noise
  return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def spread(ratios):
  """Formats the median of ratios, with their range over turns."""
  ratios = list(ratios)
  return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--num_queries", type=int, default=20_000)
  parser.add_argument("--num_labels", type=int, default=100_000)
  parser.add_argument("--dim", type=int, default=128)
  parser.add_argument("--centres", type=int, default=3000)
  parser.add_argument("--k", type=int, default=100)
  parser.add_argument("--rounds", type=int, default=3)
  options = parser.parse_args()

  faiss.omp_set_num_threads(2)
  rng = np.random.default_rng(0)
  scales = np.arange(1, options.dim + 1, dtype=np.float32) ** -0.35
  centres = scales * rng.standard_normal((options.centres, options.dim), np.float32)
  queries, labels = (clustered(rng, centres, count) for count in (options.num_queries, options.num_labels))
  print(f"top {options.k} of {len(queries):,} queries in {len(labels):,} x {options.dim}", flush=True)
  exact = Faiss().run(queries, labels, options.k)[0]
  systems = [Ours("scann"), Ours("exact"), Hnsw(exact), Faiss()]
  systems[1].run(queries[:1000], labels, options.k)  # compiles
  turns = [[system.run(queries, labels, options.k) for system in systems] for _ in range(options.rounds)]
  print("| | build, s | search, s | together, s | over ScaNN's | CPU, s | over ScaNN's | recall |")
  print("|---|---|---|---|---|---|---|---|")
  for place, system in enumerate(systems):
    builds, searches, cpu = ([turn[place][i] for turn in turns] for i in (1, 2, 3))
    totals = [build + search for build, search in zip(builds, searches)]
    slower = spread(total / sum(turn[0][1:3]) for total, turn in zip(totals, turns))
    dearer = spread(seconds / turn[0][3] for seconds, turn in zip(cpu, turns))
    print(
      f"| {system.name} | {statistics.median(builds):.1f} | {statistics.median(searches):.1f} "
      f"| {statistics.median(totals):.1f} | {slower} | {statistics.median(cpu):.1f} | {dearer} "
      f"| {min(recall(turn[place][0], exact) for turn in turns):.3f} |",
      flush=True,
    )


if __name__ == "__main__":
  main()
