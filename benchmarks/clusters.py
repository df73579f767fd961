"""Speed and quality of balanced clusters, ours against scikit-learn's BisectingKMeans.

  PYTHONPATH=.:benchmarks python benchmarks/clusters.py
  PYTHONPATH=.:benchmarks python benchmarks/clusters.py --num_vectors=20000 \
    --num_clusters=512 --num_centres=600

Unit vectors around random centres, which are sampled around 60 topics; in one process on two threads, in
turns, each with another seed. Sizes of our clusters are checked to differ by at most one.

Similarity is the mean cosine of a vector to the centroid of its cluster, averaged over all turns. The sizes
of their clusters are free: very small where vectors are far from all others, which raises similarity. So a
third line shows plain halves of equal size, run once in NumPy: Lloyd's iterations from one random pair, on
all vectors of a group, until nothing changes.
"""

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "2")

import jax
import numpy as np
import paired_timing
import roofline
from sklearn.cluster import BisectingKMeans

from xmc_jax.refresh.clusters import balanced_clusters


def draw_vectors(num_vectors, dim, num_centres, noise):
  rng = np.random.default_rng(0)
  topics = rng.standard_normal((60, dim))
  centres = 0.7 * topics[rng.integers(0, 60, num_centres)] + rng.standard_normal((num_centres, dim))
  vectors = centres[rng.integers(0, num_centres, num_vectors)]
  vectors += noise * rng.standard_normal(vectors.shape)
  return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def similarity(vectors, clusters):
  """Returns the mean cosine of a vector to the centroid of its cluster."""
  order = np.argsort(clusters, kind="stable")
  starts = np.flatnonzero(np.diff(clusters[order], prepend=-1))
  sums = np.add.reduceat(vectors[order], starts, axis=0)
  return np.linalg.norm(sums.astype(np.float64), axis=1).sum() / len(vectors)


class System:
  """Clusters the same vectors repeatedly, each time with another seed."""

  def __init__(self, name, find):
    self.name, self._find, self.found = name, find, []

  def run(self):
    self.found.append(np.asarray(self._find(len(self.found))))


def plain_halves(vectors, num_clusters):
  rng, groups = np.random.default_rng(0), [np.arange(len(vectors))]
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
    order = np.argpartition(vectors @ (centroids[1] - centroids[0]), len(vectors) // 2)  # low: the first
    now = np.sort(order[: len(vectors) // 2])
    if last is not None and np.array_equal(now, last):
      break
    last, sums = now, [vectors[half].sum(0) for half in np.array_split(order, [len(now)])]
    centroids = [total / np.linalg.norm(total) for total in sums]
  return np.array_split(order, [len(now)])


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--num_vectors", type=int, default=100_000)
  parser.add_argument("--num_clusters", type=int, default=4096)
  parser.add_argument("--num_centres", type=int, default=3000)
  parser.add_argument("--dim", type=int, default=128)
  parser.add_argument("--noise", type=float, default=1.0)
  parser.add_argument("--rounds", type=int, default=5)
  options = parser.parse_args()
  vectors = draw_vectors(options.num_vectors, options.dim, options.num_centres, options.noise)
  number = options.num_clusters
  ours = System("xmc_jax", lambda seed: balanced_clusters(vectors, number, key=jax.random.key(seed)))
  bisect = lambda seed: BisectingKMeans(number, random_state=seed).fit(vectors).labels_
  theirs = System("BisectingKMeans", bisect)
  start = time.perf_counter()
  ours.run()
  print(f"first call {time.perf_counter() - start:.1f} s", flush=True)
  sizes = np.bincount(ours.found[0], minlength=number)
  if len(sizes) != number or sizes.max() - sizes.min() > 1:
    raise SystemExit(f"not balanced: {len(sizes)} clusters of {sizes.min()} to {sizes.max()} vectors")
  seconds = paired_timing.compare(ours, theirs, options.rounds)
  levels = (number - 1).bit_length()
  roofline.say_bandwidth(levels * vectors.nbytes, seconds, f"reading vectors once a level, {levels} times")
  plain = System("plain halves", lambda _: plain_halves(vectors, number))
  plain.run()
  for system in (ours, theirs, plain):
    mean = np.mean([similarity(vectors, clusters) for clusters in system.found])
    print(f"{system.name}: similarity {mean:.4f}", flush=True)


if __name__ == "__main__":
  main()
