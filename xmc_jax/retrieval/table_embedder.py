"""Embeds the tables of texts of a run: points, labels, anchors."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from xmc_jax.data import TokenTable
from xmc_jax.distributed import sharding
from xmc_jax.retrieval.embed_table import embed_table, texts_at_a_time
from xmc_jax.types import Array, Method, PyTree, Tokens


class TableEmbedder:
  """Embeds whole tables by a method's functions, on all devices of a mesh; every process gets all vectors.

  Args:
    method: the method whose functions embed.
    mesh: the devices; texts are split over all of them.
    labels: the token table of all labels.
    batch_size: texts at a time, at most.
    max_length: the widest row of tokens.
    packs_tokens: whether the encoder computes no padding where the number of real tokens is known.
  """

  def __init__(
    self,
    method: Method,
    mesh: jax.sharding.Mesh,
    labels: TokenTable,
    *,
    batch_size: int,
    max_length: int,
    packs_tokens: bool,
  ):
    self._method, self._mesh, self._labels = method, mesh, labels
    self._batch_size, self._max_length = batch_size, max_length
    self._packed = packs_tokens and mesh.size == 1
    self._programs: dict[Callable, Any] = {}
    self._between_batches: Callable[[], None] | None = None

  def queries(
    self,
    params: PyTree,
    extra_state: PyTree,
    tokens: TokenTable,
    progress: Callable[[int], None] | None = None,
  ) -> np.ndarray:
    """Returns `[n, D]` embeddings of points; `progress` is called with the number of texts done."""
    program = self._program(self._method.embed_queries)
    return self._embed(lambda part, ids: program(params, extra_state, part), tokens, progress)

  def labels(
    self, params: PyTree, extra_state: PyTree, scorer: str = "", ids: np.ndarray | None = None
  ) -> np.ndarray:
    """Returns `[n, D]` embeddings of labels `ids`, or of all, by a scorer of the method; '' is their sum."""
    function = self._method.scorers[scorer] if scorer else self._method.embed_labels
    tokens = self._labels if ids is None else self._labels.rows(ids)
    return self._of_labels(function, params, extra_state, tokens, ids)

  def texts(self, params: PyTree, extra_state: PyTree, tokens: TokenTable | None = None) -> np.ndarray:
    """Returns `[n, D]` embeddings by texts alone: of a table of anchors, or of all labels."""
    function = self._method.embed_texts or self._method.embed_labels
    return self._of_labels(function, params, extra_state, self._labels if tokens is None else tokens)

  @contextlib.contextmanager
  def watched(self, watch: Callable[[], None]) -> Iterator[None]:
    """Calls `watch` between the batches of whatever is embedded in the block; it may raise to stop."""
    self._between_batches = watch
    try:
      yield
    finally:
      self._between_batches = None

  def _of_labels(
    self,
    function: Callable[..., Array],
    params: PyTree,
    extra_state: PyTree,
    tokens: TokenTable,
    ids: np.ndarray | None = None,
  ) -> np.ndarray:
    program = self._program(function)
    return self._embed(lambda part, which: program(params, extra_state, part, which), tokens, ids=ids)

  def _program(self, function: Callable) -> Callable[..., Array]:
    if function not in self._programs:
      self._programs[function] = jax.jit(function, out_shardings=sharding.replicated(self._mesh))
    return self._programs[function]

  def _embed(
    self,
    embed: Callable[..., Array],
    tokens: TokenTable,
    progress: Callable[[int], None] | None = None,
    ids: np.ndarray | None = None,
  ) -> np.ndarray:
    axes = sharding.LABEL_ROWS

    def on_devices(part: Tokens, which: np.ndarray) -> Array:
      which = which if ids is None else np.where(which >= 0, ids[which], -1)
      return embed(*sharding.split_tree((part, which), self._mesh, *axes))

    def after_batch(done: int) -> None:
      if self._between_batches:
        self._between_batches()
      if progress:
        progress(done)

    size = sharding.rounded_up(texts_at_a_time(len(tokens), self._batch_size), self._mesh.size)
    return embed_table(
      on_devices,
      tokens,
      batch_size=size,
      max_length=self._max_length,
      local_rows=sharding.local_rows(size, self._mesh, *axes),
      packed=self._packed,
      progress=after_batch,
    )
