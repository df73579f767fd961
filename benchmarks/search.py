"""Speed of search by inner product: exact and with ScaNN's index, against faiss and hnswlib.

  .venv-bench/bin/python -m benchmarks.search exact --rounds=11
  .venv-bench/bin/python -m benchmarks.search shortlists

  exact       `retrieval.search` as evaluation calls it, on a mesh of one device and from host arrays, beside
              `IndexFlatIP.search` on an index built before; 5,000 normal random queries
  shortlists  `refresh.shortlist` with 'scann', which tunes itself to a recall of 0.95, and 'exact', beside
              hnswlib, whose `ef` is raised by factors of sqrt(2) until its recall is 0.95 too; faiss's flat
              index is the reference for recall. All build an index each turn; of ScaNN, `build` includes
              its tuning. 20,000 unit vectors around common centres; their variance falls over the
              dimensions about as that of MiniLM's embeddings of the bundled titles

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

_RECALL, _AGREE = 0.95, 1e-5
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
  """Exits with a message if scores differ, or if ids differ without a tie.

  Rounding may swap neighbours with nearly equal scores, and choose another last label. So an id may differ
  only next to a nearly equal score, or at the end of the row.
  """
  (scores, ids), (their_scores, their_ids) = ours.run(), theirs.run()
  difference = np.abs(scores - their_scores).max() / np.abs(their_scores).max()
  other = ids != their_ids
  gaps = -np.diff(their_scores, axis=1, append=-np.inf)  # distance to the next score
  ties = np.minimum(gaps, np.roll(gaps, 1, axis=1)) <= _AGREE * np.abs(their_scores).max()
  ties[:, -1] = True  # the next score is unknown
  wrong = np.sum(other & ~ties)
  if not difference <= _AGREE or wrong:
    raise SystemExit(f"not the same: scores differ by {difference:.2e}, {wrong} ids without a tie")
  print(f"scores agree to {difference:.0e}; {np.sum(other)} of {ids.size:,} ids differ, at ties", flush=True)


def compare_exact(options):
  rng = np.random.default_rng(0)
  shapes = ((options.num_queries or 5000, options.dim), (options.num_labels, options.dim))
  queries, labels = (rng.standard_normal(shape, np.float32) for shape in shapes)
  systems = [kind(queries, labels, options.k) for kind in (Exact, FaissIndex)]
  check_equal(*systems)
  paired_timing.compare(*systems, options.rounds)


# --- shortlists: each returns ids, seconds to build, seconds to search, CPU seconds ---


class Shortlist:
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


class Hnsw:
  """Runs hnswlib with `M` 16, built at `ef` 100; finds the search's `ef` in the first run, not timed."""

  name = "hnswlib"

  def __init__(self, exact):
    self._exact, self._ef = exact, 0

  def run(self, queries, labels, k):
    import hnswlib

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
      if recall(index.knn_query(queries, k, num_threads=2)[0], self._exact[: len(queries)]) >= _RECALL:
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


def compare_shortlists(options):
  rng, k = np.random.default_rng(0), options.k
  scales = np.arange(1, options.dim + 1, dtype=np.float32) ** -0.35
  centres = scales * rng.standard_normal((_CENTRES, options.dim), np.float32)
  queries, labels = (clustered(rng, centres, n) for n in (options.num_queries or 20_000, options.num_labels))
  exact = FaissIndex(queries, labels, k).run()[1]
  systems = [Shortlist("scann"), Shortlist("exact"), Hnsw(exact)]
  systems[1].run(queries[:1000], labels, k)  # compiles
  turns = [[system.run(queries, labels, k) for system in systems] for _ in range(options.rounds)]
  for place, system in enumerate(systems):
    found = [turn[place] for turn in turns]
    ratios = [sum(turn[place][1:3]) / sum(turn[0][1:3]) for turn in turns]
    build, search, cpu = (statistics.median(each[i] for each in found) for i in (1, 2, 3))
    print(
      f"{system.name}: build {build:.1f} s, search {search:.1f} s, CPU {cpu:.1f} s; over ScaNN's "
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
