"""Samples one linked metadata-graph anchor for each point, or label, of a batch that has links (RAMEN)."""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from xmc_jax.batching import length_buckets, ragged
from xmc_jax.batching.label_pools import SampledPool, in_columns
from xmc_jax.batching.positives import doublings
from xmc_jax.data.dataset import LABEL
from xmc_jax.types import BatchSpec, SampledAnchors

_WIDTH = 256  # linked anchors that a row has room for; the width doubles for a batch that needs more


class GraphEdges(NamedTuple):
  """Holds one side of a metadata graph: its links to points, or its links to labels.

  Attributes:
    anchors: token table of the A anchors.
    edges: CSR `[N, A]` of points, or `[L, A]` of labels, before pruning.
    sampling_weights: `[nnz]` positive sampling weights of the edges, for sampling a row's anchor; None is
      uniform.
  """

  anchors: Any
  edges: Any
  sampling_weights: Any = None


def side_name(graph: str, kind: str) -> str:
  """Returns the name of a side: of a graph, its links to queries or to labels."""
  return f"{graph}_{kind}"


def graph_of(side: str) -> str:
  """Returns the name of the graph that a side belongs to."""
  return side.rpartition("_")[0]


def is_of_labels(side: str) -> bool:
  """Returns whether a side has the links to labels."""
  return side.rpartition("_")[2] == LABEL


class AnchorSampler:
  """Samples linked anchors and lays out their texts like those of a label pool.

  A pool has room for the anchors that a batch usually samples. For a batch with more, the room is doubled
  until they fit. A row without edges has no anchor. `num_rows` is of a batch, at most; `frequency`, `[N]` or
  `[L]`, says how many times a batch has each row, on average.
  """

  def __init__(
    self, side: GraphEdges, *, num_rows: int, frequency: np.ndarray, layout: length_buckets.Layout
  ):
    self._edges, self._sampling_weights = side.edges, side.sampling_weights
    self._widths = doublings(_WIDTH, int(np.diff(side.edges.indptr).max(initial=0)))
    self._usual = _usual_number(side, frequency)
    self._make_pool = functools.cache(
      lambda room: SampledPool(
        side.anchors, side.edges, BatchSpec(num_positives=1, pool_size=room), num_rows, layout
      )
    )

  def sample(
    self, ids: np.ndarray, rows: np.ndarray, kept: np.ndarray | None, generator: np.random.Generator
  ) -> SampledAnchors:
    """Samples the links of one batch.

    Args:
      ids: `[n]` points, or labels, as row numbers of the side's edges; -1 for none.
      rows: `[n]` the batch row of each point, or the pool column of each label; -1 for none.
      kept: `[nnz]` bool, the edges that were not pruned; anchors are sampled from these. None is all.
    """
    places = ragged.places_of(self._edges, ids)
    linked = places._replace(values=self._edges.indices[places.values])
    left = np.ones(len(linked.values), bool) if kept is None else np.asarray(kept[places.values])
    sampled = np.zeros(len(linked.values), bool)
    counts = linked.only(left, linked.values).counts
    if self._sampling_weights is None:
      sampled[left] = ragged.sample(counts, 1, generator)
    else:
      sampled[left] = ragged.sample_one(counts, generator, self._sampling_weights[places.values[left]])
    chosen, room = np.unique(linked.values[sampled]), self._usual
    while room < len(chosen):
      room *= 2
    pool = self._make_pool(room).sample(chosen, chosen[:0], None, generator)
    positives, weights = in_columns(linked, sampled, pool.column_of, self._widths)
    return SampledAnchors(rows.astype(np.int32), pool.columns, pool.labels, positives, weights)


def _usual_number(side: GraphEdges, frequency: np.ndarray) -> int:
  """Estimates how many distinct anchors a batch samples: the mean plus 4.5 standard deviations."""
  edges = ragged.with_values(side.edges, side.sampling_weights)
  totals = edges @ np.ones(edges.shape[1])
  sampled = -np.expm1(-(edges.T @ (frequency / np.where(totals > 0, totals, 1))))
  return max(1, math.ceil(sampled.sum() + length_buckets.MARGIN * math.sqrt((sampled * (1 - sampled)).sum())))
