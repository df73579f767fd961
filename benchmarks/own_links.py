"""The share of sampled anchors that are a row's own links, and not links that random walks added (RAMEN).

  PYTHONPATH=. python benchmarks/own_links.py            # the bundled data, seconds
  PYTHONPATH=. python benchmarks/own_links.py DATA

Prints for each graph and side the mean over rows with a link, for uniform sampling and for sampling in
proportion to visits. Nothing is trained. Unlike in a run, validation points are included.
"""

import argparse

import numpy as np

from experiments import ramen
from xmc_jax import refresh
from xmc_jax.batching.graph_anchors import side_name
from xmc_jax.data.dataset import LABEL, QUERY
from xmc_jax.runs import create


def share(odds, own) -> float:
  """Returns the mean probability of sampling an own link by weights `[N, A]`, over rows with weights."""
  total, of_own = (np.asarray(matrix.sum(axis=1)).ravel() for matrix in (odds, odds.multiply(own)))
  return float((of_own[total > 0] / total[total > 0]).mean())


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("data", nargs="?", default="", help="a folder with graphs; the bundled data by default")
  config = ramen.get_config("debian")
  config.data.path = parser.parse_args().data
  dataset, config = create.prepare(config)
  print(f"{'side':24}{'own links':>12}{'with walks':>12}{'uniform':>10}{'visits':>10}")
  for graph, links in dataset.graphs.items():
    for kind, edges in ((QUERY, links.query_edges), (LABEL, links.label_edges)):
      if edges is None or not edges.nnz:
        continue
      name, own = side_name(graph, kind), edges > 0
      odds = refresh.with_visits(own, seed=config.train.seed)
      uniform, visits = share((odds > 0).astype(np.float64), own), share(odds.astype(np.float64), own)
      print(f"{name:24}{own.nnz:12,}{odds.nnz:12,}{uniform:10.1%}{visits:10.1%}", flush=True)


if __name__ == "__main__":
  main()
