"""Speed and quality of balanced clusters, ours against scikit-learn's BisectingKMeans.

  PYTHONPATH=. python benchmarks/clusters.py
  PYTHONPATH=. python benchmarks/clusters.py --num_vectors=20000 --num_clusters=512 --num_centres=600

Ours is `refresh.balanced_clusters` from an array on the host, with a new key in each turn; theirs is
`BisectingKMeans(num_clusters).fit` of the same vectors, which have unit length, with a new random state in
each turn. Vectors are sampled around random centres, which are sampled around 60 topics. Both run in one
process on two threads, taking turns; the medians are over --rounds turns. First the results are checked: the
sizes of our clusters differ by at most one. The first call, which compiles, is reported separately. `wall` is
what a user waits for; `cpu`, the time of all threads, varies less on a busy machine.

Similarity is the mean cosine of a vector to the centroid of its cluster, averaged over all turns. The sizes
of their clusters are free: very small where vectors are far from all others, large where vectors are close,
which raises similarity. So a third line shows plain halves of equal size, run once in NumPy on one thread:
Lloyd's iterations from one random pair, on all vectors of a group, until nothing changes.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("OMP_NUM_THREADS", "2")

import jax
import numpy as np
import paired_timing
import roofline
from sklearn.cluster import BisectingKMeans

from xmc_jax.refresh.clusters import balanced_clusters


def draw_vectors(num_vectors, dim, num_centres, noise):
  """Returns `[num_vectors, dim]` float32 random vectors of unit length, around random centres."""
  rng = np.random.default_rng(0)
  topics = rng.standard_normal((60, dim))
  centres = 0.7 * topics[rng.integers(0, 60, num_centres)] + rng.standard_normal((num_centres, dim))
  vectors = centres[rng.integers(0, num_centres, num_vectors)]
  vectors += noise * rng.standard_normal(vectors.shape)
  return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def mean_similarity(vectors, clusters):
  """Returns the mean cosine of a vector to the centroid of its cluster."""
  order = np.argsort(clusters, kind="stable")
  starts = np.flatnonzero(np.diff(clusters[order], prepend=-1))
  sums = np.add.reduceat(vectors[order], starts, axis=0)
  return np.linalg.norm(sums.astype(np.float64), axis=1).sum() / len(vectors)


class System:
  """Clusters the same vectors repeatedly, each time with another seed.

  Attributes:
    clusters: the clusters of the last run.
  """

  def __init__(self, vectors, num_clusters):
    self._vectors, self._num_clusters, self._found = vectors, num_clusters, []

  def run(self):
    self._found.append(self.find(self._vectors, self._num_clusters, seed=len(self._found)))

  @property
  def clusters(self):
    return self._found[-1]

  def describe(self):
    similarity = statistics.mean(mean_similarity(self._vectors, clusters) for clusters in self._found)
    sizes = np.bincount(self.clusters, minlength=self._num_clusters)
    print(f"{self.name}: similarity {similarity:.4f}, sizes {sizes.min()} to {sizes.max()}", flush=True)


class Ours(System):
  name = "xmc_jax"

  def find(self, vectors, num_clusters, seed):
    return balanced_clusters(vectors, num_clusters, key=jax.random.key(seed))


class Bisecting(System):
  name = "BisectingKMeans"

  def find(self, vectors, num_clusters, seed):
    return BisectingKMeans(num_clusters, random_state=seed).fit(vectors).labels_


class Plain(System):
  name = "plain halves"

  def find(self, vectors, num_clusters, seed):
    rng, groups = np.random.default_rng(seed), [np.arange(len(vectors))]
    while len(groups) < num_clusters:
      groups = [group[half] for group in groups for half in halves(vectors[group], rng)]
    clusters = np.empty(len(vectors), np.int32)
    for cluster, group in enumerate(groups):
      clusters[group] = cluster
    return clusters


def halves(vectors, rng):
  """Splits vectors into halves of equal size by Lloyd's iterations; returns two index arrays."""
  centroids, last = vectors[rng.choice(len(vectors), 2, replace=False)], None
  for _ in range(100):
    scores = vectors @ (centroids[1] - centroids[0])  # low: nearer to the first
    order = np.argpartition(scores, len(vectors) // 2)
    now = np.sort(order[: len(vectors) // 2])
    if last is not None and np.array_equal(now, last):
      break
    last, sums = now, [vectors[half].sum(0) for half in np.array_split(order, [len(now)])]
    centroids = [total / np.linalg.norm(total) for total in sums]
  return np.array_split(order, [len(now)])


def check_balance(clusters, num_clusters):
  """Exits with a message if sizes differ by more than one."""
  sizes = np.bincount(clusters, minlength=num_clusters)
  if len(sizes) != num_clusters or sizes.max() - sizes.min() > 1:
    raise SystemExit(f"not balanced: {len(sizes)} clusters of {sizes.min()} to {sizes.max()} vectors")


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--num_vectors", type=int, default=100_000)
  parser.add_argument("--num_clusters", type=int, default=4096)
  parser.add_argument("--num_centres", type=int, default=3000)
  parser.add_argument("--dim", type=int, default=128)
  parser.add_argument("--noise", type=float, default=1.0)
  parser.add_argument("--rounds", type=int, default=5)
  options = parser.parse_args()

  vectors = draw_vectors(options.num_vectors, options.dim, options.num_centres, options.noise)
  print(f"{options.num_vectors:,} x {options.dim} to {options.num_clusters:,} clusters, float32")
  ours, theirs, plain = (kind(vectors, options.num_clusters) for kind in (Ours, Bisecting, Plain))
  start = time.perf_counter()
  ours.run()
  print(f"first call {time.perf_counter() - start:.1f} s", flush=True)
  check_balance(ours.clusters, options.num_clusters)
  seconds = paired_timing.compare(ours, theirs, options.rounds)
  levels = (options.num_clusters - 1).bit_length()
  roofline.say_bandwidth(
    levels * vectors.nbytes, seconds, f"reading the vectors once for each of {levels} levels"
  )
  plain.run()
  for system in (ours, theirs, plain):
    system.describe()


if __name__ == "__main__":
  main()
