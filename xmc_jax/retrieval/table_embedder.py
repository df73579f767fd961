"""Embeds the tables of texts of a run: points, labels, anchors."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xmc_jax.batching import length_buckets
from xmc_jax.data import TokenTable
from xmc_jax.distributed import runtime, sharding, split_table
from xmc_jax.distributed.split_table import SplitTable, Table
from xmc_jax.retrieval.embed_table import embed_table, texts_at_a_time
from xmc_jax.types import Array, Method, PyTree, Tokens

_Embed = Callable[[Tokens, Array], Array]  # (tokens, ids [b]) -> [b, D]
_BY_TEXT = "text"  # in place of a scorer's name: by texts alone


def with_added_labels(method: Method, num_trained: int) -> Method:
  """Returns the method, whose labels from `num_trained` on are embedded by their texts alone."""
  by_text = method.embed_texts
  if by_text is None:
    return method

  def embed_labels(params, extra_state, tokens, ids):
    trained = method.embed_labels(params, extra_state, tokens, jnp.minimum(ids, num_trained - 1))
    added = by_text(params, extra_state, tokens, ids)
    return jnp.where((ids < num_trained)[:, None], trained, added)

  return method._replace(embed_labels=embed_labels)


class TableEmbedder:
  """Embeds whole tables by a method's functions, on all devices of a mesh.

  The vectors are split over the processes.

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
    few_shapes: bool = False,
  ) -> Table:
    """Returns `[n, D]` embeddings of points.

    Args:
      params, extra_state: of the method.
      tokens: the n texts.
      progress: called with the number of texts done.
      few_shapes: embed only in shapes that `compile_few_shapes` compiles.
    """
    return self._embed(self._of_points(params, extra_state), tokens, progress, few_shapes=few_shapes)

  def compile_few_shapes(self, params: PyTree, extra_state: PyTree) -> None:
    """Compiles `queries` with `few_shapes` for any number of texts of any length."""
    for size in self._few_sizes:
      for width in length_buckets.few_widths(self._max_length):
        ids, starts = np.zeros(width, np.int32), np.zeros(size, np.int64)
        tokens = TokenTable(ids, starts, np.full(size, width, np.int32))
        self.queries(params, extra_state, tokens, few_shapes=True)

  @property
  def _few_sizes(self) -> tuple[int, ...]:
    """Returns the numbers of texts at a time, where all are compiled beforehand.

    A CPU gains little by more than 8, and pads less: the 8 are of like lengths.
    """
    on_cpu = self._mesh.devices.flat[0].platform == "cpu"
    return (1, 8) if on_cpu else (1, 8, 64)

  def labels(
    self, params: PyTree, extra_state: PyTree, scorer: str = "", ids: np.ndarray | None = None
  ) -> Table:
    """Returns `[n, D]` embeddings of labels `ids`, or of all, by a scorer of the method; '' is their sum."""
    tokens = self._labels if ids is None else self._labels.rows(ids)
    return self._embed(self._of_labels(params, extra_state, scorer), tokens, ids=ids)

  def texts(self, params: PyTree, extra_state: PyTree, tokens: TokenTable | None = None) -> Table:
    """Returns `[n, D]` embeddings of a table of anchors, or of all labels, by their texts alone."""
    tokens = self._labels if tokens is None else tokens
    return self._embed(self._of_labels(params, extra_state, _BY_TEXT), tokens)

  @contextlib.contextmanager
  def watched(self, watch: Callable[[], None]) -> Iterator[None]:
    """Calls `watch` between the batches of whatever is embedded in the block; it may raise to stop."""
    self._between_batches = watch
    try:
      yield
    finally:
      self._between_batches = None

  def _of_points(self, params: PyTree, extra_state: PyTree) -> _Embed:
    program = self._program(self._method.embed_queries)
    return lambda part, ids: program(params, extra_state, part)

  def _of_labels(self, params: PyTree, extra_state: PyTree, scorer: str) -> _Embed:
    method = self._method
    by_name = {"": method.embed_labels, _BY_TEXT: method.embed_texts or method.embed_labels, **method.scorers}
    program = self._program(by_name[scorer])
    return lambda part, ids: program(params, extra_state, part, ids)

  def _program(self, function: Callable) -> Callable[..., Array]:
    if function not in self._programs:
      self._programs[function] = jax.jit(function, out_shardings=sharding.replicated(self._mesh))
    return self._programs[function]

  def _embed(
    self,
    embed: _Embed,
    tokens: TokenTable,
    progress: Callable[[int], None] | None = None,
    ids: np.ndarray | None = None,
    few_shapes: bool = False,
  ) -> Table:
    axes = sharding.LABEL_ROWS

    def on_devices(part: Tokens, which: np.ndarray) -> Array:
      which = which if ids is None else np.where(which >= 0, ids[which], -1)
      return embed(*sharding.split_tree((part, which), self._mesh, *axes))

    def after_batch(done: int) -> None:
      if self._between_batches:
        self._between_batches()
      if progress:
        progress(done)

    size = texts_at_a_time(len(tokens), self._batch_size)
    if few_shapes:
      size = next((size for size in self._few_sizes if size >= len(tokens)), self._few_sizes[-1])
    size = sharding.rounded_up(size, self._mesh.size)
    vectors = embed_table(
      on_devices,
      tokens,
      batch_size=size,
      max_length=self._max_length,
      local_rows=sharding.local_rows(size, self._mesh, *axes),
      kept=split_table.own_range(len(tokens)),
      packed=self._packed and not few_shapes,
      widths=length_buckets.few_widths(self._max_length) if few_shapes else (),
      progress=after_batch,
    )
    return vectors if runtime.is_alone() else SplitTable(vectors, split_table.row_starts(len(tokens)))
