"""Anchors of a metadata graph in a batch: one for each of its points, or labels, that has some (RAMEN)."""

from typing import Any, NamedTuple

import numpy as np

from xmc_jax.contract import BatchSpec, Links
from xmc_jax.data import buckets, ragged
from xmc_jax.data.pools import DrawnPool, in_columns

_WIDTH = 16  # linked anchors of a row that a batch has room for; a batch that needs more is widened
KEPT = "kept_"  # before a side's name, in `fresh`: which of its edges were not pruned


class Side(NamedTuple):
  """One side of a metadata graph.

  Attributes:
    anchors: token table of the A anchors.
    edges: CSR `[N, A]` of points, or `[L, A]` of labels, before anything is pruned.
    of_labels: which of the two.
  """

  anchors: Any
  edges: Any
  of_labels: bool


class LinkSampler:
  """Draws linked anchors, and lays their texts out as a pool's.

  Args:
    side: what to draw from; a row without edges has no anchor.
    num_rows: of a batch, at most.
    max_length: the widest token row.
    num_shards: devices that the anchors' texts are split over.
    held: which of a group's rows this process reads; None is all.
  """

  def __init__(
    self,
    side: Side,
    *,
    num_rows: int,
    max_length: int,
    num_shards: int = 1,
    held: buckets.Held | None = None,
  ):
    self._edges = side.edges
    self._pool = DrawnPool(
      side.anchors,
      side.edges,
      BatchSpec(num_positives=1),
      batch_size=num_rows,
      max_length=max_length,
      num_shards=num_shards,
      held=held,
    )

  def draw(self, rows: np.ndarray, kept: np.ndarray | None, generator: np.random.Generator) -> Links:
    """The links of one batch.

    Args:
      rows: `[n]` rows of the side's edges, -1 for none.
      kept: `[nnz]` bool, the edges that were not pruned, of which an anchor is drawn; None is all.
      generator: of the draws.
    """
    places = ragged.places_of(self._edges, rows)
    linked = places._replace(values=self._edges.indices[places.values])
    left = np.ones(len(linked.values), bool) if kept is None else np.asarray(kept[places.values])
    drawn = np.zeros(len(linked.values), bool)
    drawn[left] = ragged.draw(linked.only(left, linked.values).counts, 1, generator)
    pool = self._pool.draw(linked.values[drawn], linked.values[:0], None, generator)
    positives, weights = in_columns(linked, drawn, pool.column_of, _WIDTH)
    return Links(pool.columns, pool.labels, positives, weights)
