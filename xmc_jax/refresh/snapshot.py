"""Holds the input of refreshes: embeddings of points, labels and anchors, and the training truth."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import cast

import jax
import numpy as np
import scipy.sparse as sp

from xmc_jax.batching.graph_anchors import GraphEdges, graph_of
from xmc_jax.data.dataset import unfiltered
from xmc_jax.distributed import split_table
from xmc_jax.distributed.split_table import AnyTable, Table
from xmc_jax.types import PyTree

EmbedAnchors = Callable[[GraphEdges], np.ndarray]  # side -> [A, D]


@dataclasses.dataclass(eq=False, repr=False)
class Snapshot:
  """Holds the current embeddings, computed once for all refreshes that use them, and the training truth.

  With several processes the embeddings of points and labels are split: each process has some rows.

  Args:
    embed_queries: `() -> [N, D]`, embeds the training points.
    embed_labels, embed_texts: `() -> [L, D]`, embed the labels; the latter by their texts alone.
    truth: CSR `[N, L]`, true labels.
    filtered: CSR `[N, L]`, filter pairs, which count neither as positives nor as negatives.
    rows: `[N']` the points that have a label to learn.
    step: number of steps done; an epoch has `steps_per_epoch`.
    devices: the mesh.
    params, extra_state: the method's parameters and extra_state.
    sides: sides of metadata graphs, by name.
    embed_anchors: `side -> [A, D]`, embeds the anchors of a side's graph.
    biased: whether labels and anchors are embedded as `[n, D + 1]`, with a bias of their scores at the end.
  """

  embed_queries: Callable[[], Table]
  embed_labels: Callable[[], Table]
  embed_texts: Callable[[], Table]
  _: dataclasses.KW_ONLY
  truth: sp.csr_matrix
  filtered: sp.csr_matrix
  rows: np.ndarray
  step: int
  steps_per_epoch: int
  devices: jax.sharding.Mesh
  params: PyTree = None
  extra_state: PyTree = None
  sides: Mapping[str, GraphEdges] = dataclasses.field(default_factory=dict)
  embed_anchors: EmbedAnchors | None = None
  biased: bool = False
  _anchors: dict[str, np.ndarray] = dataclasses.field(default_factory=dict, init=False)

  @functools.cached_property
  def queries(self) -> Table:
    """Returns the points' embeddings, `[N, D]` float32."""
    return self.embed_queries()

  @functools.cached_property
  def labels_to_rank(self) -> Table:
    """Returns the labels' embeddings, `[L, D]` float32, or `[L, D + 1]`, as `search.search` takes them."""
    return self.embed_labels()

  @functools.cached_property
  def labels(self) -> Table:
    """Returns the labels' embeddings, `[L, D]` float32."""
    return self._without_bias(self.labels_to_rank)

  @functools.cached_property
  def texts(self) -> Table:
    """Returns the labels' embeddings by their texts alone, `[L, D]` float32."""
    return self._without_bias(self.embed_texts())

  def anchors(self, side: str) -> np.ndarray:
    """Returns the anchors' embeddings of a side's graph, `[A, D]` float32; caches only the last graph's."""
    graph = graph_of(side)
    if graph not in self._anchors:
      embed = cast(EmbedAnchors, self.embed_anchors)  # given where there are sides
      self._anchors = {graph: self._without_bias(embed(self.sides[side]))}
    return self._anchors[graph]

  def _without_bias(self, table: AnyTable) -> AnyTable:
    return split_table.columns(table, slice(-1)) if self.biased else table

  @functools.cached_property
  def unfiltered_positives(self) -> sp.csr_matrix:
    """Returns CSR `[N, L]`, the true labels without the filter pairs."""
    return unfiltered(self.truth, self.filtered)

  @functools.cached_property
  def known(self) -> sp.csr_matrix:
    """Returns CSR `[N, L]`, pairs that are no negatives: true labels and filter pairs."""
    return self.truth.astype(bool) + self.filtered
