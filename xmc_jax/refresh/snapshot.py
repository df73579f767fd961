"""What a refresh may look at."""

import functools
from collections.abc import Callable

import numpy as np


class Snapshot:
  """The embeddings of the moment, made once, however many refreshes ask for them, and the training truth.

  Args:
    embed_queries: `() -> [N, D]`, of the training points.
    embed_labels: `() -> [L, D]`.
    known: CSR `[N, L]`, pairs that are no negatives: true labels and filter pairs.
    step: steps done.
    devices: the mesh.
  """

  def __init__(
    self,
    embed_queries: Callable[[], np.ndarray],
    embed_labels: Callable[[], np.ndarray],
    known,
    step: int,
    devices,
  ):
    self._embed_queries, self._embed_labels = embed_queries, embed_labels
    self.known, self.step, self.devices = known, step, devices

  @functools.cached_property
  def queries(self) -> np.ndarray:
    """`[N, D]` float32."""
    return self._embed_queries()

  @functools.cached_property
  def labels(self) -> np.ndarray:
    """`[L, D]` float32."""
    return self._embed_labels()
