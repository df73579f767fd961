"""Time to build batches on the host, and how long a training waits for them.

PYTHONPATH=. python benchmarks/batches.py build   # sizes of LF-AmazonTitles-131K
PYTHONPATH=. python benchmarks/batches.py build --set=lf_amazontitles_1.3m --points=70272 \
  --methods unidec --beside_python
PYTHONPATH=. python benchmarks/batches.py wait --methods dexml ngame --num_epochs=2       # a bag: short steps
PYTHONPATH=. python benchmarks/batches.py wait --methods ramen --preset=debian_minilm3

build  `batching.builder.BatchBuilder` on random data of a set's sizes: texts of 3 to 32 tokens, shortlists,
       clusters. Milliseconds of CPU time of one thread, the median of --batches. --beside_python does
       the same with Python's sets and dicts, point by point, as a collate function of a PyTorch loader would
wait   the library's own loop on the bundled data, with its refreshes. Waiting is the time that the loop is
       blocked because no batch is ready; the device may still be busy meanwhile, so this is an upper bound
       of its idle time. Compilation, refreshes and evaluations are not counted
"""

import argparse
import importlib
import pathlib
import statistics
import tempfile
import time

import numpy as np
import scipy.sparse as sp

from benchmarks.accelerator import compiled
from experiments.common import SIZES
from xmc_jax import methods
from xmc_jax.batching import prefetch
from xmc_jax.batching.builder import BatchBuilder
from xmc_jax.batching.epochs import num_clusters
from xmc_jax.data.tokens import TokenTable
from xmc_jax.distributed import sharding
from xmc_jax.runs import create
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.training import loop
from xmc_jax.types import DatasetInfo

_METHODS = ("dexml", "dpr", "ova", "unidec", "ngame", "dexa", "prime", "rae_xmc")
_LONGEST, _VOCABULARY, _SPECIAL_IDS, _SHORTLIST = 32, 30_522, (101, 102, 0), 100
_UNDISTURBED = {"eval.every_epochs": 0.0, "checkpoint.every_epochs": 0.0}


def texts(number: int, rng: np.random.Generator) -> TokenTable:
  """Returns random texts of 3 to 32 tokens, 11 on average."""
  lengths = np.clip(rng.poisson(11, number), 3, _LONGEST)
  ids = rng.integers(0, _VOCABULARY, lengths.sum()).astype(np.int32)
  return TokenTable.of_offsets(ids, np.concatenate([[0], np.cumsum(lengths)]))


def true_pairs(num_points: int, num_labels: int, mean: float, rng: np.random.Generator) -> sp.csr_matrix:
  """Returns `[N, L]` pairs, one or more of each point; neighbouring points share labels."""
  counts = np.clip(rng.lognormal(np.log(mean) - 0.5, 1.0, num_points), 1, num_labels // 4).astype(np.int64)
  centres = np.repeat(np.arange(num_points) * (num_labels / num_points), counts)
  columns = (centres + rng.normal(0, 40 * mean, counts.sum())).astype(np.int64) % num_labels
  offsets = np.concatenate([[0], np.cumsum(counts)])
  found = sp.csr_matrix((np.ones(len(columns), np.float32), columns, offsets), (num_points, num_labels))
  found.sum_duplicates()
  found.data[:] = 1
  return found


def build(name: str, points: TokenTable, labels: TokenTable, truth: sp.csr_matrix, given) -> None:
  """Prints the CPU time of a batch of a method's preset."""
  config, rng = compiled.config_of(f"{name}:{given.set}", []), np.random.default_rng(1)
  num_points, num_labels = truth.shape
  info = DatasetInfo(
    num_points,
    num_labels,
    _LONGEST,
    _VOCABULARY,
    _SPECIAL_IDS,
    sharding.make(1, 1),
    graphs={},
    label_counts=np.asarray((truth > 0).sum(axis=0)).ravel(),
  )
  spec, size = methods.make(config, info).batch, config.train.batch_size
  nothing = sp.csr_matrix(truth.shape, dtype=np.float32)
  builder = BatchBuilder(points, labels, truth, nothing, spec, batch_size=size, max_length=_LONGEST, seed=0)
  refreshed = {}
  if spec.num_hard_negatives:
    around = np.arange(num_points)[:, None] * (num_labels / num_points)
    found = (around + rng.integers(0, 900, (num_points, _SHORTLIST))) % num_labels
    refreshed["shortlist"] = found.astype(np.int32)
  if spec.batch_is_cluster or spec.cluster_size:
    number = builder.steps_per_epoch if spec.batch_is_cluster else num_clusters(num_points, spec.cluster_size)
    refreshed["clusters"] = (np.arange(num_points) * number // num_points).astype(np.int32)
  ours, theirs = [], []
  for step in range(given.batches + 1):
    start = time.thread_time()
    batch = builder.build(step, refreshed)
    ours.append(1e3 * (time.thread_time() - start))
    if given.beside_python:
      rows = [row for row in batch.rows.tolist() if row >= 0]
      start = time.thread_time()
      by_python(rows, truth, refreshed.get("shortlist"), labels, points, rng, spec)
      theirs.append(1e3 * (time.thread_time() - start))
  beside = f"; with Python's sets {statistics.median(theirs):.1f} ms" if theirs else ""
  print(f"{name}: {statistics.median(ours[1:]):.1f} ms{beside}", flush=True)  # the first orders an epoch


def by_python(rows, truth, shortlist, labels, queries, rng, spec):
  """Builds the batch of some rows point by point: pool, each row's positives in it, and texts."""
  all_true, drawn, hard = [], set(), set()
  for row in rows:
    true = truth.indices[truth.indptr[row] : truth.indptr[row + 1]].tolist()
    all_true.append(true)
    drawn.update(rng.choice(true, min(spec.num_positives, len(true)), replace=False).tolist())
    if spec.num_hard_negatives:
      hard.update(rng.choice(shortlist[row], spec.num_hard_negatives, replace=False).tolist())
  pool = list(drawn) + list(hard - drawn)[: max(0, spec.pool_size - len(drawn))]
  column = {label: at for at, label in enumerate(pool)}
  in_pool = [[column[label] for label in true if label in column] for true in all_true]
  texts = [
    table.gather(np.array([number]), 32) for table, ids in ((queries, rows), (labels, pool)) for number in ids
  ]
  return pool, in_pool, texts


class Watched:
  """Wraps `batching.prefetch.prefetch`; records how long each batch is built, and how long it is awaited."""

  def __init__(self):
    self.built, self.waited = [], []

  def prefetch(self, build, first, last, depth=3):
    def timed(step):
      start = time.perf_counter()
      batch = build(step)
      self.built.append(time.perf_counter() - start)
      return batch

    waiting = prefetch.prefetch(timed, first, last, depth)
    for _ in range(first, last):
      start = time.perf_counter()
      batch = next(waiting)
      self.waited.append(time.perf_counter() - start)
      yield batch


def wait(name: str, given, folder: pathlib.Path) -> None:
  """Trains one method and prints the share of its time spent waiting."""
  config = importlib.import_module(f"experiments.{name}").get_config(given.preset)
  config.update_from_flattened_dict({**_UNDISTURBED, "train.num_epochs": given.num_epochs})
  writer, watched = MetricWriter(folder), Watched()
  run = create.create(config, folder, writer)
  loop.prefetch = watched.prefetch
  loop.train(run, writer)
  waited, trained = sum(watched.waited), writer.seconds["train"]
  print(
    f"{name}: {len(watched.waited):,} steps of {1e3 * trained / len(watched.waited):.1f} ms; a batch is "
    f"built in {1e3 * statistics.median(watched.built):.1f} ms; waited {1e3 * waited:.0f} ms of "
    f"{trained + waited:.1f} s = {waited / (trained + waited):.2%}, "
    f"the longest {1e3 * max(watched.waited):.0f} ms",
    flush=True,
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("what", choices=("build", "wait"))
  parser.add_argument("--methods", nargs="+", default=_METHODS, help="experiments")
  parser.add_argument("--set", default="lf_amazontitles_131k", choices=SIZES, help="whose sizes are used")
  parser.add_argument("--points", type=int, help="fewer than the set has")
  parser.add_argument("--batches", type=int, default=30)
  parser.add_argument("--beside_python", action="store_true")
  parser.add_argument("--preset", default="debian", help="to wait for")
  parser.add_argument("--num_epochs", type=int, default=4)
  given = parser.parse_args()
  if given.what == "wait":
    for name in given.methods:
      with tempfile.TemporaryDirectory() as folder:
        wait(name, given, pathlib.Path(folder) / name)
    return
  rng = np.random.default_rng(0)
  num_points, num_labels, mean, _, _ = SIZES[given.set]
  num_points = given.points or num_points
  truth = true_pairs(num_points, num_labels, mean, rng)
  points, labels = texts(num_points, rng), texts(num_labels, rng)
  for name in given.methods:
    build(name, points, labels, truth, given)


if __name__ == "__main__":
  main()
