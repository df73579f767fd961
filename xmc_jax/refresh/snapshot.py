"""What a refresh may look at."""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from xmc_jax.batching.graph_anchors import Side, graph_of
from xmc_jax.data.truth import unfiltered


class Snapshot:
  """The embeddings of the moment, made once, however many refreshes ask for them, and the training truth.

  Args:
    embed_queries: `() -> [N, D]`, of the training points.
    embed_labels, embed_texts: `() -> [L, D]`; the latter of their texts alone.
    truth: CSR `[N, L]`, true labels.
    filtered: CSR `[N, L]`, pairs that count for nothing.
    rows: `[N']` the points that have something to learn from.
    step: steps done; `steps_per_epoch` in each epoch.
    devices: the mesh.
    params, aux: the method's.
    sides: of metadata graphs, by name.
    embed_anchors: `side -> [A, D]`, of its anchors.
  """

  def __init__(
    self,
    embed_queries: Callable[[], np.ndarray],
    embed_labels: Callable[[], np.ndarray],
    embed_texts: Callable[[], np.ndarray],
    *,
    truth,
    filtered,
    rows: np.ndarray,
    step: int,
    steps_per_epoch: int,
    devices,
    params=None,
    aux=None,
    sides: Mapping[str, Side] = MappingProxyType({}),
    embed_anchors: Callable[[Side], np.ndarray] | None = None,
  ):
    self._embed_queries, self._embed_labels, self._embed_texts = embed_queries, embed_labels, embed_texts
    self.truth, self._filtered, self.rows, self.devices = truth, filtered, rows, devices
    self.step, self.steps_per_epoch = step, steps_per_epoch
    self.params, self.aux, self.sides = params, aux, sides
    self._embed_anchors, self._anchors = embed_anchors, {}

  @functools.cached_property
  def queries(self) -> np.ndarray:
    """`[N, D]` float32."""
    return self._embed_queries()

  @functools.cached_property
  def labels(self) -> np.ndarray:
    """`[L, D]` float32."""
    return self._embed_labels()

  @functools.cached_property
  def texts(self) -> np.ndarray:
    """`[L, D]` float32, the labels by their texts alone."""
    return self._embed_texts()

  def anchors(self, side: str) -> np.ndarray:
    """`[A, D]` float32, those of a side's graph; of one graph at a time they are kept."""
    graph = graph_of(side)
    if graph not in self._anchors:
      self._anchors = {graph: self._embed_anchors(self.sides[side])}
    return self._anchors[graph]

  @functools.cached_property
  def learnable(self):
    """CSR `[N, L]`, the true labels less the filtered pairs."""
    return unfiltered(self.truth, self._filtered)

  @functools.cached_property
  def known(self):
    """CSR `[N, L]`, pairs that are no negatives: true labels and filter pairs."""
    return self.truth.astype(bool) + self._filtered
