"""Time to build a batch on the host: UniDEC's batch, with its pool and all positives in it.

  PYTHONPATH=. python benchmarks/batches.py
  PYTHONPATH=. python benchmarks/batches.py --num_labels=131073 --labels_per_point=2.3 --batch_size=576

Ours is `batching.builder.BatchBuilder`; theirs does the same with Python's sets and dicts, point by point, as
a collate function of a PyTorch loader would. Clusters and shortlists are made up, texts have random lengths,
and labels per point are log-normal: some points have hundreds. Both run in one process on one thread, in
turns of --batches batches; the medians are over all batches. On a busy machine, `CPU` varies less than the
wall clock. First, each point's positives in the pool are checked against the truth.
"""

import argparse
import statistics
import time

import numpy as np
import scipy.sparse as sp

from xmc_jax.batching.builder import BatchBuilder
from xmc_jax.data import TokenTable
from xmc_jax.types import BatchSpec


def make_texts(number: int, rng: np.random.Generator) -> TokenTable:
  lengths = np.clip(rng.normal(14, 5, number), 4, 32).astype(np.int64)
  return TokenTable.of_offsets(
    rng.integers(5, 30_000, lengths.sum()).astype(np.uint16), np.concatenate([[0], np.cumsum(lengths)])
  )


def make_truth(num_points: int, num_labels: int, mean: float, rng: np.random.Generator) -> sp.csr_matrix:
  """Builds a truth matrix with a log-normal number of labels per point; neighbouring points share labels."""
  counts = np.clip(rng.lognormal(np.log(mean) - 0.5, 1.0, num_points), 1, num_labels // 4).astype(np.int64)
  centres = np.repeat(np.arange(num_points) * (num_labels / num_points), counts)
  labels = (centres + rng.normal(0, 40 * mean, counts.sum())).astype(np.int64) % num_labels
  matrix = sp.csr_matrix(
    (np.ones(len(labels), np.float32), (np.repeat(np.arange(num_points), counts), labels)),
    (num_points, num_labels),
  )
  matrix.sum_duplicates()
  matrix.data[:] = 1
  return matrix


def by_python(rows, truth, shortlist, labels, queries, rng, positives: int, negatives: int, pool_size: int):
  """Builds the batch of some rows point by point: pool, each row's positives in it, and texts."""
  all_true, drawn, hard = [], set(), set()
  for row in rows:
    true = truth.indices[truth.indptr[row] : truth.indptr[row + 1]].tolist()
    all_true.append(true)
    drawn.update(rng.choice(true, min(positives, len(true)), replace=False).tolist())
    listed = [label for label in shortlist[row].tolist() if label >= 0]
    hard.update(rng.choice(listed, min(negatives, len(listed)), replace=False).tolist())
  pool = list(drawn) + list(hard - drawn)[: max(0, pool_size - len(drawn))]
  column = {label: at for at, label in enumerate(pool)}
  in_pool = [[column[label] for label in true if label in column] for true in all_true]
  texts = [
    table.gather(np.array([number]), 32) for table, ids in ((queries, rows), (labels, pool)) for number in ids
  ]
  return pool, in_pool, texts


def timed(build, *given) -> tuple[float, float]:
  """Returns wall-clock and CPU seconds of a call."""
  wall, cpu = time.perf_counter(), time.process_time()
  build(*given)
  return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--num_points", type=int, default=70_272)
  parser.add_argument("--num_labels", type=int, default=1_305_265)
  parser.add_argument("--labels_per_point", type=float, default=22.2)
  parser.add_argument("--batch_size", type=int, default=1098)
  parser.add_argument("--pool_size", type=int, default=3000)
  parser.add_argument("--batches", type=int, default=20)
  parser.add_argument("--rounds", type=int, default=3)
  given = parser.parse_args()
  rng = np.random.default_rng(0)
  truth = make_truth(given.num_points, given.num_labels, given.labels_per_point, rng)
  queries, labels = (make_texts(number, rng) for number in truth.shape)
  spec = BatchSpec(
    "in_batch", num_positives=3, num_hard_negatives=6, pool_size=given.pool_size, batch_is_cluster=True
  )
  none = sp.csr_matrix(truth.shape, dtype=bool)
  builder = BatchBuilder(
    queries, labels, truth, none, spec, batch_size=given.batch_size, max_length=32, seed=0
  )
  clusters = (np.arange(given.num_points) * builder.steps_per_epoch // given.num_points).astype(np.int32)
  around = np.arange(given.num_points)[:, None] * (given.num_labels / given.num_points)
  shortlist = ((around + rng.integers(0, 900, (given.num_points, 30))) % given.num_labels).astype(np.int32)
  refreshed = {"clusters": clusters, "shortlist": shortlist}

  batch = builder.build(0, refreshed)
  pool = batch.columns
  for row, positives in zip(batch.rows, batch.positives):
    expected = set(truth[row].indices.tolist()) & set(pool[pool >= 0].tolist()) if row >= 0 else set()
    assert {int(pool[at]) for at in positives if at >= 0} == expected
  print(
    f"{np.sum(batch.rows >= 0):,} points, {np.sum(pool >= 0):,} labels in the pool, "
    f"{np.sum(batch.positives >= 0) / np.sum(batch.rows >= 0):.1f} positives a point, "
    f"{batch.dropped[0]:,} hard negatives dropped; longest row {np.diff(truth.indptr).max():,}"
  )
  ours, theirs = [], []
  for turn in range(given.rounds):
    steps = range(1 + turn * given.batches, 1 + (turn + 1) * given.batches)
    ours += [timed(builder.build, step, refreshed) for step in steps]
    for step in steps:
      rows = [row for row in builder.build(step, refreshed).rows.tolist() if row >= 0]
      theirs.append(timed(by_python, rows, truth, shortlist, labels, queries, rng, 3, 6, given.pool_size))
  for name, found in (("ours", ours), ("Python", theirs)):
    wall, cpu = (statistics.median(times) for times in zip(*found))
    slow = np.percentile([wall for wall, _ in found], 90)
    print(f"{name}: {1e3 * wall:.2f} ms, 90 % of batches below {1e3 * slow:.2f} ms; CPU {1e3 * cpu:.2f} ms")


if __name__ == "__main__":
  main()
