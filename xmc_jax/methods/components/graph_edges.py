"""Loads the edges of metadata graphs that a run learns from, and adds those of random walks.

Edges of walks are computed once and stored in `graphs/` in the run's folder. Only training reads them.
"""

import contextlib
import functools
import hashlib
import pathlib
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import ml_collections
import numpy as np
import scipy.sparse as sp

from xmc_jax import data, refresh
from xmc_jax.batching.graph_anchors import GraphEdges, graph_of, is_of_labels
from xmc_jax.console import Progress, say
from xmc_jax.data.arrays import Texts
from xmc_jax.data.dataset import LABEL, QUERY
from xmc_jax.distributed import runtime
from xmc_jax.errors import ConfigError
from xmc_jax.storage import npy, run_folder

_TOO_DENSE = 0.5  # a warning is printed if a graph links this share of all pairs
_NAMED_LIKE_OTHERS = 0.5  # a remedy is printed if this share of a graph's links to points is label-like
_WORD = re.compile(r"\w+")
_BLOCK_PATHS = 1 << 24  # paths from points over anchors to labels that `augmented` follows at a time


def load(
  names: tuple[str, ...],
  dataset: data.Dataset,
  points: np.ndarray,
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
) -> dict[str, GraphEdges]:
  """Loads sides of metadata graphs; runs their random walks if no earlier command did.

  `points` `[N]` are the run's training rows, as row numbers of all training data.
  """
  found = {}
  for name in names:
    graph, of_labels = dataset.graphs[graph_of(name)], is_of_labels(name)
    every: Any = graph.label_edges if of_labels else graph.query_edges
    edges = every if of_labels else every[points]
    if config.method.random_edges:
      edges = _with_random(edges, config.method.random_edges, _seed(name, config))
    note = f"graph: {name} has {edges.nnz:,} links"
    named_like: Callable[[sp.csr_matrix], np.ndarray] | None = None
    if edges.nnz and not of_labels:
      same = same_words(dataset.labels.texts, graph.anchors.texts)
      named_like = functools.partial(label_like, truth=dataset.train.truth[points], same=same)
      share = named_like(edges).mean()
      note += f" ({share:.0%} to anchors named like a label that is not the point's{_remedy(share, config)})"
    sampling_weights: np.ndarray | None = None
    if config.method.walk_hops and config.method.walk_sides in ("both", LABEL if of_labels else QUERY):
      edges, sampling_weights = _walked(edges, name, config, workdir / run_folder.GRAPHS)
      note += f", {edges.nnz:,} with those of walks"
    if named_like and config.method.label_like_anchors == "drop":
      edges, sampling_weights = _without(named_like(edges), edges, sampling_weights)
      note += f", {edges.nnz:,} without anchors named so"
    say(note + _warning(edges))
    found[name] = GraphEdges(graph.anchors.tokens, edges, sampling_weights)
  return found


def same_words(labels: Texts, anchors: Texts) -> sp.csr_matrix:
  """Returns CSR `[L, A]` bool, which labels and anchors have the same set of words."""
  numbers: dict[str, int] = {}
  of_labels, of_anchors = (
    np.fromiter((numbers.setdefault(_words(text), len(numbers)) for text in texts), np.int64, len(texts))
    for texts in (labels, anchors)
  )
  return (_one_hot(of_labels, len(numbers)) @ _one_hot(of_anchors, len(numbers)).T).tocsr()


def label_like(edges: sp.csr_matrix, truth: sp.csr_matrix, same: sp.csr_matrix) -> np.ndarray:
  """Returns which links have an anchor named like some label, but like none of the point's.

  Args:
    edges: CSR `[N, A]`, the links of points.
    truth: CSR `[N, L]`, their labels.
    same: CSR `[L, A]`, as `same_words` returns it.

  Returns:
    `[nnz]` bool, in the order of `edges.indices`.
  """
  found = (np.bincount(same.indices, minlength=edges.shape[1]) > 0)[edges.indices]
  places = np.flatnonzero(found)
  if not len(places):
    return found
  rows = np.searchsorted(edges.indptr, places, side="right") - 1
  found[places] = ~np.asarray((truth.astype(bool) @ same)[rows, edges.indices[places]]).ravel()
  return found


def _words(text: str) -> str:
  """Returns a text's words, each once, in alphabetical order; the text itself if it has none."""
  return " ".join(sorted(set(_WORD.findall(text.lower())))) or text


def _one_hot(columns: np.ndarray, width: int) -> sp.csr_matrix:
  """Returns CSR `[n, width]` bool with one column a row."""
  ends = np.arange(len(columns) + 1)
  return sp.csr_matrix((np.ones(len(columns), bool), columns, ends), shape=(len(columns), width))


def _without(
  dropped: np.ndarray, edges: sp.csr_matrix, sampling_weights: np.ndarray | None
) -> tuple[sp.csr_matrix, np.ndarray | None]:
  """Returns `(edges, weights)` without the edges that are True in `dropped`, `[nnz]`."""
  kept = ~dropped
  indptr = np.concatenate([[0], np.cumsum(kept)])[edges.indptr]
  left = sp.csr_matrix((np.ones(indptr[-1], bool), edges.indices[kept], indptr), shape=edges.shape)
  return left, None if sampling_weights is None else sampling_weights[kept]


def _warning(edges: sp.csr_matrix) -> str:
  share = edges.nnz / max(1, edges.shape[0] * edges.shape[1])
  if share < _TOO_DENSE:
    return ""
  return (
    f": {share:.0%} of all pairs, so few anchors are left as negatives; try --config.method.walk_kept=3, or "
    "--config.method.walk_hops=0"
  )


def _remedy(share: float, config: ml_collections.ConfigDict) -> str:
  settings = config.method
  if share < _NAMED_LIKE_OTHERS or settings.labels == "all" or settings.num_hard_negatives:
    return ""
  return "; try --config.method.num_hard_negatives=1, or leave the graph out of --config.method.graphs"


def _with_random(edges: sp.csr_matrix, share: float, seed: int) -> sp.csr_matrix:
  """Adds edges between random ends, `share` times as many as the graph has."""
  generator, number = np.random.default_rng(seed), round(share * edges.nnz)
  ends = (generator.integers(0, size, number) for size in edges.shape)
  return (edges + sp.csr_matrix((np.ones(number, np.float32), tuple(ends)), shape=edges.shape)).tocsr()


def _walked(
  edges: sp.csr_matrix, name: str, config: ml_collections.ConfigDict, folder: pathlib.Path
) -> tuple[sp.csr_matrix, np.ndarray | None]:
  """Returns `(edges, weights)`: CSR `[N, A]` bool with edges of walks; sampling weights, None if uniform."""
  settings = config.method
  by_visits = settings.anchor_sampling == "visits"
  digest = _digest(edges, name, config)
  parts = ("indptr", "indices", *(["odds"] if by_visits else []))
  paths = [folder / f"{name}.{digest}.{part}.npy" for part in parts]
  with runtime.main_process_first(f"walks of {name}"):
    if not all(path.exists() for path in paths):
      walk = refresh.with_visits if by_visits else refresh.with_walks
      with contextlib.closing(Progress(f"walks of {name}", edges.shape[1], unit="anchor")) as bar:
        walked = walk(
          edges,
          num_hops=settings.walk_hops,
          restart=settings.walk_restart,
          num_kept=settings.walk_kept,
          seed=_seed(name, config),
          progress=bar.update,
        )
      folder.mkdir(parents=True, exist_ok=True)
      for path, array in zip(paths, (walked.indptr, walked.indices, walked.data)):
        npy.write(path, array)
  indptr = npy.read(paths[0], edges.shape[0] + 1)
  indices = npy.read(paths[1], int(indptr[-1]))
  sampling_weights = npy.read(paths[2], len(indices)) if by_visits else None
  return sp.csr_matrix(
    (np.broadcast_to(np.True_, len(indices)), indices, indptr), shape=edges.shape
  ), sampling_weights


def _digest(edges: sp.csr_matrix, name: str, config: ml_collections.ConfigDict) -> str:
  """Returns a digest of all that a walk depends on, so that files of another walk are not used."""
  settings = config.method
  of_walk = settings.walk_hops, settings.walk_restart, settings.walk_kept, edges.shape[1], _seed(name, config)
  found = hashlib.blake2b(repr(of_walk).encode(), digest_size=6)
  found.update(edges.indptr.astype(np.int64))
  found.update(edges.indices.astype(np.int32))
  return found.hexdigest()


def _seed(name: str, config: ml_collections.ConfigDict) -> int:
  """Returns the seed of a side; no two sides have the same random numbers."""
  return zlib.crc32(f"{name} {config.train.seed}".encode())


def augmented(
  truth: sp.csr_matrix, dataset: data.Dataset, points: np.ndarray, settings: ml_collections.ConfigDict
) -> sp.csr_matrix:
  """Adds to the true labels those that share an anchor of some graph with the point (RAMEN's Table 8, AugGT).

  Works on blocks of points. The result takes 8 bytes per pair, and as much again while its blocks are joined.
  In addition, a block takes some 500 MB, and each edge 8 bytes. A point with more paths to labels than fit
  into a block is a block of its own.

  `points` `[N]` are the run's training rows, as row numbers of all training data. The result is float32, 1
  for added labels. A graph with only one side adds nothing.

  Raises:
    ConfigError: more than `max_augmented_pairs` would be added; stops as soon as the limit is passed.
  """
  added = 0
  for name in settings.graphs or dataset.graphs:
    graph = dataset.graphs[name]
    if graph.query_edges is None or graph.label_edges is None:
      continue
    # Of bool, so that a pair counts once.
    of_points, labels_of = graph.query_edges[points].astype(bool), graph.label_edges.astype(bool).T.tocsr()
    before, parts = added, []
    with contextlib.closing(Progress(f"label pairs of {name}", len(points), unit="point")) as bar:
      for start, end in _blocks(of_points, np.diff(labels_of.indptr)):
        true = truth[start:end]
        shared = (of_points[start:end] @ labels_of).astype(np.float32)
        parts.append((true + (shared - shared.multiply(true > 0))).tocsr())
        added += parts[-1].nnz - true.nnz
        if added > settings.max_augmented_pairs:
          expected = (added - before) * len(points) / end
          raise ConfigError(_too_many(name, expected, before, settings.max_augmented_pairs))
        bar.update(end)
    say(f"graph: {name} adds {added - before:,} label pairs to {truth.nnz:,}")
    truth = sp.vstack(parts, "csr")
  return truth.tocsr()


def _blocks(of_points: sp.csr_matrix, degrees: np.ndarray) -> Iterator[tuple[int, int]]:
  """Yields `(start, end)` of points with up to `_BLOCK_PATHS` paths to labels; a point with more is alone."""
  ends = np.concatenate([[0], np.cumsum(degrees[of_points.indices], dtype=np.int64)])[of_points.indptr]
  start = 0
  while start < of_points.shape[0]:
    end = int(np.searchsorted(ends, ends[start] + _BLOCK_PATHS, side="right")) - 1
    yield start, max(end, start + 1)
    start = max(end, start + 1)


def _too_many(name: str, expected: float, before: int, most: int) -> str:
  others = f" to {before:,} of other graphs" if before else ""
  return (
    f"method.augment_truth = True: graph {name} would add about {round(expected):,} label pairs{others} "
    f"(estimated from the points so far), but --config.method.max_augmented_pairs allows only {most:,}; "
    "raise it (16 bytes per pair), leave the graph out of --config.method.graphs, or set "
    "--config.method.augment_truth=False"
  )
