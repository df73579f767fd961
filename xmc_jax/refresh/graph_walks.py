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


def with_visits(edges, *, num_hops: int = 400, **options):
  """Returns the edges of `with_walks`, each with how much of all walks it stands for: odds to draw it by.

  w_ip = e_ip + 1/H Σ_a e_ia v_ap, where e is 1 for an edge of the graph, v_ap are the visits to anchor p of
  the walk from a, and H is `num_hops`: a row's own edge weighs 1, and a walk from one of its anchors shares
  out 1, or less, as no more than `num_kept` of the visited are kept. So drawn in proportion to w, at least
  half of a row's draws are of its own edges. The formula is ours: the paper draws uniformly (section 3.1).

  Args:
    edges: as in `with_walks`.
    num_hops: of each walk.
    options: others of `walk_visits`.

  Returns:
    CSR `[N, A]` float32, above 0. Of whole numbers until the end, so it is the same everywhere.
  """
  return weighted(edges, walk_visits(edges, num_hops=num_hops, **options), num_hops)


def weighted(edges, visits, num_hops: int):
  """Returns w of `with_visits`, CSR `[N, A]`, of edges `[N, A]` and visits `[A, A]` that were counted."""
  edges, visits = _binary(edges), sp.csr_matrix(visits, dtype=np.int64)
  parts = []
  for start in range(0, edges.shape[0], _ROWS):
    part = edges[start : start + _ROWS].astype(np.int64)
    found = (num_hops * part + part @ visits).tocsr()
    found.sort_indices()
    parts.append((found / num_hops).astype(np.float32))
  return sp.vstack(parts, "csr") if parts else edges.astype(np.float32)


def linked(edges, walks):
  """A graph with the edges of walks that were made: CSR `[N, A]` bool of `[N, A]` and `[A, A]`."""
  edges = _binary(edges)
  starts = range(0, edges.shape[0], _ROWS)
  parts = (edges[start : start + _ROWS] for start in starts)
  found = [_binary(part + part @ walks) for part in parts]
  return sp.vstack(found, "csr") if found else edges


def random_walks(edges, **options):
  """Returns W `[A, A]`, CSR bool: row a has the anchors that `walk_visits` counts of the walk from a."""
  return _binary(walk_visits(edges, **options))


def walk_visits(
  edges,
  *,
  num_hops: int = 400,
  restart: float = 0.8,
  num_kept: int = 10,
  seed: int = 0,
  progress: Callable[[int], None] | None = None,
):
  """Counts the visits of a walk with restart from each anchor (Mittal et al., 2021, as in ECLARE).

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
    CSR `[A, A]` int32: row a has how many of its hops ended at what the walk from a visited most. Memory
    beside it is some 400 MB.
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


def _most_visited(begun: np.ndarray, visited: np.ndarray, num_kept: int) -> tuple[np.ndarray, ...]:
  """Returns `(anchors, visited anchors, visits)`, at most `num_kept` of each that walks `[H, n]` began at."""
  num_hops, num_walks = visited.shape
  ordered = np.sort(visited, axis=0).T.ravel()  # walk by walk
  owners = np.repeat(np.arange(num_walks), num_hops)
  first = np.flatnonzero((np.diff(ordered, prepend=-1) != 0) | (np.arange(len(ordered)) % num_hops == 0))
  counts = np.diff(np.append(first, len(ordered)))
  anchors, owners = ordered[first], owners[first]
  order = np.lexsort((anchors, -counts, owners))
  begins = np.searchsorted(owners, np.arange(num_walks))  # owners rise, before and after
  kept = order[np.arange(len(order)) - begins[owners] < num_kept]
  return begun[owners[kept]], anchors[kept], counts[kept]
