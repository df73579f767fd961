"""Speed of random walks over a metadata graph of the paper's size: 2.5 million anchors, 27 million edges.

  PYTHONPATH=. python benchmarks/walks.py               # some 10 minutes on one core
  PYTHONPATH=. python benchmarks/walks.py --share=0.05

The graph is made up; some anchors have many more edges than others. Prints time and peak memory of the walks
and of the edges that they add.
"""

import argparse
import resource
import time

import numpy as np
import scipy.sparse as sp

from xmc_jax.console import Progress
from xmc_jax.refresh import graph_walks


def made_up(num_points: int, num_anchors: int, num_edges: int):
  """Returns random edges as CSR `[N, A]` bool; an edge's anchor is the square of a uniform number, scaled."""
  rng = np.random.default_rng(0)
  rows = rng.integers(0, num_points, num_edges)
  anchors = (num_anchors * rng.random(num_edges) ** 2).astype(np.int64)
  edges = sp.csr_matrix((np.ones(num_edges, bool), (rows, anchors)), shape=(num_points, num_anchors))
  edges.sum_duplicates()
  return edges


def peak() -> str:
  return f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9:.2f} GB"


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--share", type=float, default=1.0, help="of 1.8 M points, 2.5 M anchors, 27 M edges")
  share = parser.parse_args().share
  edges = made_up(*(int(share * size) for size in (1_800_000, 2_500_000, 27_000_000)))
  print(f"{edges.shape[1]:,} anchors, {edges.nnz:,} edges; {peak()}", flush=True)
  start, bar = time.perf_counter(), Progress("walks", edges.shape[1], unit="anchor")
  found = graph_walks.random_walks(edges, progress=bar.update)
  print(f"walks: {time.perf_counter() - start:.0f} s, {found.nnz:,} kept; {peak()}", flush=True)
  start = time.perf_counter()
  linked = graph_walks.linked(edges, found)
  print(f"edges: {time.perf_counter() - start:.0f} s, {linked.nnz:,} with those of walks; {peak()}")


if __name__ == "__main__":
  main()
