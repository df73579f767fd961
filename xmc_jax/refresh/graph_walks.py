"""Adds edges to a metadata graph by random walks between anchors (RAMEN, appendix A).

The appendix has 400 hops and a restart of 0.8. Adding the 10 anchors that a walk visits most is from ECLARE.
docs/formulas.md, "RAMEN".
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

_CHUNK = 1 << 23  # anchors x hops at a time
_ROWS = 1 << 16  # points whose edges are added at a time


def with_walks(edges: sp.csr_matrix, **options: Any) -> sp.csr_matrix:
  """Returns a graph with its own edges and those that random walks add: E' = E ∪ binarise(E W).

  Row a of W has the anchors that the walk from a visits in `walk_visits`.

  Args:
    edges: CSR `[N, A]`, points or labels by anchors; every stored entry is an edge.
    options: keyword arguments of `walk_visits`.

  Returns:
    CSR `[N, A]` bool.
  """
  walks = _binary(walk_visits(edges, **options))
  return _in_blocks(edges, lambda part: _binary(part + part @ walks))


def with_visits(edges: sp.csr_matrix, *, num_hops: int = 400, **options: Any) -> sp.csr_matrix:
  """Returns the edges of `with_walks` with sampling weights, by how often walks visit them.

  w_ip = e_ip + 1/H Σ_a e_ia v_ap, where e is 1 for an edge of the graph, v_ap counts the visits to anchor p
  of the walk from a, and H is `num_hops`. A row's own edge weighs 1. The walk from one of its anchors adds at
  most 1 in total, less if it visits more than `num_kept` anchors. Sampling in proportion to w thus picks a
  row's own edges at least half of the time. The formula is ours: the paper samples uniformly (section 3.1).

  Args:
    edges: as in `with_walks`.
    num_hops: hops of each walk.
    options: other keyword arguments of `walk_visits`.

  Returns:
    CSR `[N, A]` float32, above 0. Sums are over integers, so the result is the same on every machine.
  """
  visits = walk_visits(edges, num_hops=num_hops, **options).astype(np.int64)

  def work(part: sp.csr_matrix) -> sp.csr_matrix:
    part = part.astype(np.int64)
    found = (num_hops * part + part @ visits).tocsr()
    found.sort_indices()
    return (found / num_hops).astype(np.float32)

  return _in_blocks(edges, work)


def _in_blocks(edges: sp.csr_matrix, work: Callable[[sp.csr_matrix], sp.csr_matrix]) -> sp.csr_matrix:
  """Returns `work` of a block of rows at a time, stacked."""
  edges = _binary(edges)
  parts = [work(edges[start : start + _ROWS]) for start in range(0, edges.shape[0], _ROWS)]
  return sp.vstack(parts, "csr") if parts else work(edges)


def walk_visits(
  edges: sp.csr_matrix,
  *,
  num_hops: int = 400,
  restart: float = 0.8,
  num_kept: int = 10,
  seed: int = 0,
  progress: Callable[[int], None] | None = None,
) -> sp.csr_matrix:
  """Counts the visits of one walk with restart from each anchor (ECLARE, Mittal et al., 2021).

  A hop first returns to the walk's starting anchor with probability `restart`. It then moves to a random
  point of the current anchor, and on to a random anchor of that point, which counts as visited. There is no
  walk from an anchor without points.

  Args:
    edges: CSR `[N, A]`; every stored entry is an edge.
    num_hops: hops of each walk.
    restart: probability of returning to the start.
    num_kept: the most anchors kept per walk: the most visited, of equally visited ones the lowest ids.
    seed: random seed of the walks. The result is a function of it and of the graph.
    progress: called with the number of anchors done.

  Returns:
    CSR `[A, A]` int32: row a has the numbers of visits to the anchors that the walk from a visited most.
    Takes some 400 MB of extra memory.
  """
  edges = _binary(edges)
  points_of = edges.T.tocsr()
  num_anchors, size = edges.shape[1], max(1, _CHUNK // num_hops)
  parts = []
  for start in range(0, num_anchors, size):
    begun = np.arange(start, min(start + size, num_anchors), dtype=np.int32)
    begun = begun[np.diff(points_of.indptr)[begun] > 0]
    generator = np.random.default_rng((seed, start))
    visited = np.empty((num_hops, len(begun)), np.int32)
    here = begun
    for hop in range(num_hops):
      here = np.where(generator.random(len(begun)) < restart, begun, here)
      here = visited[hop] = _random_entry(edges, _random_entry(points_of, here, generator), generator)
    parts.append(_most_visited(begun, visited, num_kept))
    if progress:
      progress(min(start + size, num_anchors))
  rows, columns, counts = (np.concatenate(found) for found in zip(*parts)) if parts else ((), (), ())
  walks = sp.csr_matrix((np.asarray(counts, np.int32), (rows, columns)), shape=(num_anchors, num_anchors))
  walks.sort_indices()
  return walks


def _binary(edges):
  """Returns CSR bool with a True for each stored entry, columns sorted."""
  edges = sp.csr_matrix(edges)
  made = sp.csr_matrix((np.ones(edges.nnz, bool), edges.indices, edges.indptr), shape=edges.shape)
  made.sum_duplicates()
  return made


def _random_entry(matrix: sp.csr_matrix, rows: np.ndarray, generator: np.random.Generator) -> np.ndarray:
  """Samples one column of each given row uniformly from its entries; every row must have some."""
  starts = matrix.indptr[rows]
  counts = matrix.indptr[rows + 1] - starts
  return matrix.indices[starts + (generator.random(len(rows)) * counts).astype(starts.dtype)]


def _most_visited(begun: np.ndarray, visited: np.ndarray, num_kept: int) -> tuple[np.ndarray, ...]:
  """Returns `(start anchors, visited anchors, visits)` of walks `[H, n]`, at most `num_kept` per start."""
  num_hops, num_walks = visited.shape
  ordered = np.sort(visited, axis=0).T.ravel()  # walk by walk
  owners = np.repeat(np.arange(num_walks), num_hops)
  first = np.flatnonzero((np.diff(ordered, prepend=-1) != 0) | (np.arange(len(ordered)) % num_hops == 0))
  counts = np.diff(np.append(first, len(ordered)))
  anchors, owners = ordered[first], owners[first]
  order = np.lexsort((anchors, -counts, owners))
  begins = np.searchsorted(owners, np.arange(num_walks))  # owners are sorted, before and after
  kept = order[np.arange(len(order)) - begins[owners] < num_kept]
  return begun[owners[kept]], anchors[kept], counts[kept]
