"""Speed and quality of balanced clusters, ours against scikit-learn's BisectingKMeans.

  python -m benchmarks.clusters
  python -m benchmarks.clusters --num_vectors=20000 \
    --num_clusters=512 --num_centres=600

Unit vectors around random centres, which are sampled around 60 topics; in one process on two threads, in
turns, each with another seed. Sizes of our clusters are checked to differ by at most one.

Similarity is the mean cosine of a vector to the centroid of its cluster, averaged over all turns. The sizes
of their clusters are free: very small where vectors are far from all others, which raises similarity.
"""

import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "2")

import jax
import numpy as np
from sklearn.cluster import BisectingKMeans

from benchmarks import flags, paired_timing
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


def main():
  options = flags.parse(
    __doc__, num_vectors=100_000, num_clusters=4096, num_centres=3000, dim=128, noise=1.0, rounds=5
  )
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
  paired_timing.compare(ours, theirs, options.rounds)
  for system in (ours, theirs):
    mean = np.mean([similarity(vectors, clusters) for clusters in system.found])
    print(f"{system.name}: similarity {mean:.4f}", flush=True)


if __name__ == "__main__":
  main()
