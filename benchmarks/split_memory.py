"""Measures the host memory of processes that cluster and search embeddings, split over them or whole in each.

  python -m benchmarks.split_memory [--processes=2] [--points=300000] [--labels=100000]

Every process has a simulated CPU device, on loopback; --kind, --number and --port are for these processes.
Prints for each process how much its memory grew, and the seconds, for balanced clusters of the points and for
shortlists of ten labels a point.
"""

import argparse
import os
import socket
import subprocess
import sys
import time

from benchmarks import children, flags

_CLUSTER_SIZE, _SHORTLIST, _BLOCK = 256, 10, 1024


def table(rows: range, dim: int, seed: int):
  """Returns random rows `[n, D]` of a table: the same, whatever process makes them."""
  import numpy as np

  made = np.empty((len(rows), dim), np.float32)
  for block in range(rows.start // _BLOCK, -(-rows.stop // _BLOCK)):
    drawn = np.random.default_rng((seed, block)).standard_normal((_BLOCK, dim), np.float32)
    low, high = max(rows.start, block * _BLOCK), min(rows.stop, (block + 1) * _BLOCK)
    made[low - rows.start : high - rows.start] = drawn[low - block * _BLOCK : high - block * _BLOCK]
  return made


def worker(options: argparse.Namespace) -> None:
  """Runs in each process: makes the tables, and prints its growth in GB and its seconds."""
  import jax

  from xmc_jax.distributed import sharding, split_table
  from xmc_jax.refresh import balanced_clusters, shortlist

  jax.distributed.initialize(f"localhost:{options.port}", options.processes, options.number)
  mesh = sharding.make(options.processes, 1)
  split_table.sum_over_processes(table(range(1), 1, 0))  # connects them

  def made(count: int, seed: int) -> split_table.Table:
    if options.kind == "whole":
      return table(range(count), options.dim, seed)
    own = table(split_table.own_range(count), options.dim, seed)
    return split_table.SplitTable(own, split_table.row_starts(count))

  before, start = _peak(), time.perf_counter()
  points = made(options.points, 1)
  ready = time.perf_counter()
  balanced_clusters(points, 1 << (options.points // _CLUSTER_SIZE).bit_length(), key=jax.random.key(0))
  clustered, seconds = _peak(), time.perf_counter() - ready
  labels = made(options.labels, 2)
  ready = time.perf_counter()
  shortlist(points, labels, _SHORTLIST, backend="exact", devices=mesh)
  print(
    f"{options.kind}, process {options.number}: clusters {clustered - before:.2f} GB and {seconds:.1f} s, "
    f"with shortlists {_peak() - before:.2f} GB and {time.perf_counter() - ready:.1f} s; "
    f"{time.perf_counter() - start:.0f} s in all",
    flush=True,
  )


def _peak() -> float:
  return children.peak_bytes("self") / 1e9


def main() -> None:
  options = flags.parse(
    __doc__, processes=2, points=300_000, labels=100_000, dim=256, kind="", number=0, port=0
  )
  if options.kind:
    return worker(options)
  for kind in ("whole", "split"):
    with socket.socket() as probe:
      probe.bind(("localhost", 0))
      port = probe.getsockname()[1]
    shared = [f"--{name}={getattr(options, name)}" for name in ("processes", "points", "labels", "dim")]
    command = [sys.executable, "-m", "benchmarks.split_memory", f"--kind={kind}", f"--port={port}", *shared]
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    workers = [
      subprocess.Popen([*command, f"--number={number}"], env=env, stderr=subprocess.PIPE)
      for number in range(options.processes)
    ]
    for child in workers:
      error = child.communicate()[1]
      if child.returncode:
        sys.exit(error.decode())


if __name__ == "__main__":
  main()
