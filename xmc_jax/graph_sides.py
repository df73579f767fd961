"""What a run takes of its data's metadata graphs: edges to points and labels, with those of random walks.

They are made once and kept in the run's folder, `graphs/`, of which training alone knows.
"""

import contextlib
import hashlib
import pathlib
import zlib

import numpy as np
import scipy.sparse as sp

from xmc_jax import data, refresh, run_folder, runtime
from xmc_jax.contract import ConfigError
from xmc_jax.data.links import Side, graph_of, is_of_labels
from xmc_jax.report import Progress, say

_TOO_DENSE = 0.5  # a graph that links so many of all pairs
_MOST_PAIRS = 2 * 10**8  # that `augmented` makes


def load(
  names: tuple[str, ...], dataset: data.Dataset, points: np.ndarray, config, workdir: pathlib.Path
) -> dict[str, Side]:
  """The sides of these names, their walks done now or before.

  Args:
    names: of sides.
    dataset: whose graphs they are of.
    points: `[N]` the training rows of a run, of all that the data have.
    config: of `config.method` the `walk_*` and `random_edges` are used, and the seed.
    workdir: the run's folder.
  """
  found = {}
  for name in names:
    graph = dataset.graphs[graph_of(name)]
    edges = graph.label_edges if is_of_labels(name) else graph.query_edges[points]
    if config.method.random_edges:
      edges = _with_random(edges, config.method.random_edges, _seed(name, config))
    said = f"graph: {name} has {edges.nnz:,} links"
    if config.method.walk_hops:
      edges = _walked(edges, name, config, workdir / run_folder.GRAPHS)
      said += f", {edges.nnz:,} with those of walks"
    say(said + _warning(edges))
    found[name] = Side(graph.anchors.tokens, edges)
  return found


def _warning(edges) -> str:
  share = edges.nnz / max(1, edges.shape[0] * edges.shape[1])
  if share < _TOO_DENSE:
    return ""
  return (
    f": {share:.0%} of all pairs, so few anchors are left as negatives; try --config.method.walk_kept=3, or "
    "--config.method.walk_hops=0"
  )


def _with_random(edges, share: float, seed: int):
  """Edges, and so many for each of them between any two ends."""
  generator, number = np.random.default_rng(seed), round(share * edges.nnz)
  ends = (generator.integers(0, size, number) for size in edges.shape)
  return (edges + sp.csr_matrix((np.ones(number, np.float32), tuple(ends)), shape=edges.shape)).tocsr()


def _walked(edges, name: str, config, folder: pathlib.Path):
  paths = [folder / f"{name}.{_digest(edges, name, config)}.{part}.npy" for part in ("indptr", "indices")]
  with runtime.main_process_first(f"walks of {name}"):
    if not all(path.exists() for path in paths):
      walked = _walk(edges, name, config)
      folder.mkdir(parents=True, exist_ok=True)
      for path, array in zip(paths, (walked.indptr, walked.indices)):
        run_folder.write_array(path, array)
  indptr = run_folder.open_array(paths[0], edges.shape[0] + 1)
  indices = run_folder.open_array(paths[1], int(indptr[-1]))
  return sp.csr_matrix((np.broadcast_to(np.True_, len(indices)), indices, indptr), shape=edges.shape)


def _digest(edges, name: str, config) -> str:
  """Of all that a walk depends on: files of another are not taken for this one's."""
  settings = config.method
  of_walk = settings.walk_hops, settings.walk_restart, settings.walk_kept, edges.shape[1], _seed(name, config)
  found = hashlib.blake2b(repr(of_walk).encode(), digest_size=6)
  found.update(edges.indptr.astype(np.int64))
  found.update(edges.indices.astype(np.int32))
  return found.hexdigest()


def _seed(name: str, config) -> int:
  """No two sides have the same random numbers."""
  return zlib.crc32(f"{name} {config.train.seed}".encode())


def _walk(edges, name: str, config):
  settings = config.method
  with contextlib.closing(Progress(f"walks of {name}", edges.shape[1], unit="anchor")) as bar:
    return refresh.with_walks(
      edges,
      num_hops=settings.walk_hops,
      restart=settings.walk_restart,
      num_kept=settings.walk_kept,
      seed=_seed(name, config),
      progress=bar.update,
    )


def augmented(truth, dataset: data.Dataset, points: np.ndarray, names: tuple[str, ...]):
  """True labels, and those that share an anchor of some graph with the point (RAMEN's Table 8, AugGT).

  Args:
    truth: CSR `[N, L]`.
    dataset: whose graphs they are; those with one side add nothing.
    points: `[N]` training rows, of all that the data have.
    names: of graphs; () is all.

  Returns:
    CSR `[N, L]` float32, 1 for what was added.

  Raises:
    ConfigError: that would be too many.
  """
  for name in names or dataset.graphs:
    graph = dataset.graphs[name]
    if graph.query_edges is None or graph.label_edges is None:
      continue
    of_points, of_labels = (edges.astype(bool) for edges in (graph.query_edges[points], graph.label_edges))
    degrees = (np.bincount(edges.indices, minlength=edges.shape[1]) for edges in (of_points, of_labels))
    num_paths = int(np.dot(*degrees))
    if num_paths > _MOST_PAIRS:
      raise ConfigError(
        f"method.augment_truth = True: graph {name} links points to labels in {num_paths:,} ways; "
        "set --config.method.augment_truth=False, or leave the graph out of --config.method.graphs"
      )
    shared = (of_points @ of_labels.T).astype(np.float32)  # bool until then
    more = truth + (shared - shared.multiply(truth > 0))
    say(f"graph: {name} adds {more.nnz - truth.nnz:,} label pairs to {truth.nnz:,}")
    truth = more
  return truth.tocsr()
