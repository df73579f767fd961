"""Measures how long a host thread takes to build a batch, for presets of LF-AmazonTitles-131K.

  PYTHONPATH=. python benchmarks/batch_building.py
  PYTHONPATH=. python benchmarks/batch_building.py --methods dexml ngame

The data have the set's sizes and are random: texts of 3 to 32 tokens, shortlists, clusters. Prints
milliseconds of CPU time of one thread, the median of 30 batches.
"""

import argparse
import statistics
import time

import numpy as np
import scipy.sparse as sp

from benchmarks.accelerator import compiled
from experiments.common import SIZES
from xmc_jax import methods
from xmc_jax.batching.builder import BatchBuilder
from xmc_jax.batching.epochs import num_clusters
from xmc_jax.data.tokens import TokenTable
from xmc_jax.distributed import sharding
from xmc_jax.types import DatasetInfo

_SET = "lf_amazontitles_131k"
_METHODS = ("dexml", "dpr", "ova", "unidec", "ngame", "dexa", "prime", "rae_xmc")
_LONGEST, _VOCABULARY, _SPECIAL_IDS, _SHORTLIST, _BATCHES = 32, 30_522, (101, 102, 0), 100, 30


def texts(number: int, rng: np.random.Generator) -> TokenTable:
  """Returns random texts of 3 to 32 tokens, 11 on average."""
  lengths = np.clip(rng.poisson(11, number), 3, _LONGEST)
  ids = rng.integers(0, _VOCABULARY, lengths.sum()).astype(np.int32)
  return TokenTable.of_offsets(ids, np.concatenate([[0], np.cumsum(lengths)]))


def true_pairs(num_points: int, num_labels: int, mean: float, rng: np.random.Generator) -> sp.csr_matrix:
  """Returns `[N, L]` pairs, one or more of each point."""
  counts = 1 + rng.poisson(mean - 1, num_points)
  columns, offsets = rng.integers(0, num_labels, counts.sum()), np.concatenate([[0], np.cumsum(counts)])
  found = sp.csr_matrix((np.ones(len(columns), np.float32), columns, offsets), (num_points, num_labels))
  found.sum_duplicates()
  return found


def milliseconds(name: str, points: TokenTable, labels: TokenTable, truth: sp.csr_matrix) -> float:
  """Returns the CPU time of a batch of a method's preset."""
  config, rng = compiled.config_of(f"{name}:{_SET}", []), np.random.default_rng(1)
  num_points, num_labels = truth.shape
  counts = np.asarray((truth > 0).sum(axis=0)).ravel()
  info = DatasetInfo(
    num_points,
    num_labels,
    _LONGEST,
    _VOCABULARY,
    _SPECIAL_IDS,
    sharding.make(1, 1),
    graphs={},
    label_counts=counts,
  )
  spec, size = methods.make(config, info).batch, config.train.batch_size
  nothing = sp.csr_matrix(truth.shape, dtype=np.float32)
  builder = BatchBuilder(points, labels, truth, nothing, spec, batch_size=size, max_length=_LONGEST, seed=0)
  refreshed = {}
  if spec.num_hard_negatives:
    refreshed["shortlist"] = rng.integers(0, num_labels, (num_points, _SHORTLIST)).astype(np.int32)
  if spec.batch_is_cluster or spec.cluster_size:
    number = builder.steps_per_epoch if spec.batch_is_cluster else num_clusters(num_points, spec.cluster_size)
    refreshed["clusters"] = rng.permutation(np.arange(num_points) % number).astype(np.int32)
  taken = []
  for step in range(_BATCHES + 1):
    start = time.thread_time()
    builder.build(step, refreshed)
    taken.append(1e3 * (time.thread_time() - start))
  return statistics.median(taken[1:])  # the first puts an epoch in order


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--methods", nargs="+", default=_METHODS, choices=_METHODS)
  options = parser.parse_args()
  rng = np.random.default_rng(0)
  num_points, num_labels, mean, _, _ = SIZES[_SET]
  truth = true_pairs(num_points, num_labels, mean, rng)
  points, labels = texts(num_points, rng), texts(num_labels, rng)
  for name in options.methods:
    print(f"{name}: {milliseconds(name, points, labels, truth):.1f} ms", flush=True)


if __name__ == "__main__":
  main()
