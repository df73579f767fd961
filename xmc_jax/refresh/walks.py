"""Edges that a metadata graph lacks: random walks from anchor to anchor (RAMEN, Mittal et al. 2024)."""

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

_CHUNK = 1 << 23  # anchors x hops at a time
_ROWS = 1 << 16  # points whose edges are added at a time


def with_walks(edges, **options):
  """A graph with the edges that random walks add: E' = binarise(E W), and all that it has.

  Args:
    edges: CSR `[N, A]`, points or labels by anchors; every stored entry is an edge.
    options: of `random_walks`.

  Returns:
    CSR `[N, A]` bool.
  """
  return linked(edges, random_walks(edges, **options))


def linked(edges, walks):
  """A graph with the edges of walks that were made: CSR `[N, A]` bool of `[N, A]` and `[A, A]`."""
  edges = _binary(edges)
  starts = range(0, edges.shape[0], _ROWS)
  parts = (edges[start : start + _ROWS] for start in starts)
  found = [_binary(part + part @ walks) for part in parts]
  return sp.vstack(found, "csr") if found else edges


def random_walks(
  edges,
  *,
  num_hops: int = 400,
  restart: float = 0.8,
  num_kept: int = 10,
  seed: int = 0,
  progress: Callable[[int], None] | None = None,
):
  """The anchors that a walk with restart from each anchor visits most (Mittal et al., 2021, as in ECLARE).

  A hop goes back to the anchor that the walk began at, with probability `restart`, and then on to a random
  point of the anchor where it is, and to a random anchor of that point, which is visited. An anchor without
  points goes nowhere.

  Args:
    edges: CSR `[N, A]`; every stored entry is an edge.
    num_hops: of each walk.
    restart: probability of beginning again.
    num_kept: anchors kept of each walk, at most: the most visited, of equally visited ones the first.
    seed: of the walks. The result is a function of it and of the graph.
    progress: called with the number of anchors done.

  Returns:
    CSR W `[A, A]` bool: row a has what the walk from a visited most. Memory beside it is some 400 MB.
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
  rows, columns = (np.concatenate(found) for found in zip(*parts)) if parts else ((), ())
  walks = sp.csr_matrix((np.ones(len(rows), bool), (rows, columns)), shape=(num_anchors, num_anchors))
  walks.sort_indices()
  return walks


def _binary(edges):
  """CSR bool with an entry for each stored one, in order."""
  edges = sp.csr_matrix(edges)
  made = sp.csr_matrix((np.ones(edges.nnz, bool), edges.indices, edges.indptr), shape=edges.shape)
  made.sum_duplicates()
  return made


def _random_entry(matrix, rows: np.ndarray, generator: np.random.Generator) -> np.ndarray:
  """A column of each of these rows, drawn uniformly from those that it has; every row has some."""
  starts = matrix.indptr[rows]
  counts = matrix.indptr[rows + 1] - starts
  return matrix.indices[starts + (generator.random(len(rows)) * counts).astype(starts.dtype)]


def _most_visited(begun: np.ndarray, visited: np.ndarray, num_kept: int) -> tuple[np.ndarray, np.ndarray]:
  """`(anchors, visited anchors)`, at most `num_kept` pairs for each of those that walks `[H, n]` began at."""
  num_hops, num_walks = visited.shape
  ordered = np.sort(visited, axis=0).T.ravel()  # walk by walk
  owners = np.repeat(np.arange(num_walks), num_hops)
  first = np.flatnonzero((np.diff(ordered, prepend=-1) != 0) | (np.arange(len(ordered)) % num_hops == 0))
  counts = np.diff(np.append(first, len(ordered)))
  anchors, owners = ordered[first], owners[first]
  order = np.lexsort((anchors, -counts, owners))
  begins = np.searchsorted(owners, np.arange(num_walks))  # owners rise, before and after
  kept = order[np.arange(len(order)) - begins[owners] < num_kept]
  return begun[owners[kept]], anchors[kept]
