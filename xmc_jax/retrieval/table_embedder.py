"""Embeds whole tables of texts, such as points, labels and anchors, with few shapes and little padding."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xmc_jax.batching import length_buckets
from xmc_jax.data import TokenTable
from xmc_jax.distributed import runtime, sharding, split_table
from xmc_jax.distributed.split_table import SplitTable, Table
from xmc_jax.retrieval.search import one_behind
from xmc_jax.types import Array, Method, PyTree, Tokens

_Embed = Callable[[Tokens, Array], Array]  # (tokens, ids [b]) -> [b, D]
_FEW_CHUNKS = 4


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
    """Returns `[n, D]` embeddings of points; `progress` is called with the number of texts done.

    With `few_shapes` only in shapes that `compile_few_shapes` compiles.
    """
    program = self._program(self._method.embed_queries)
    embed = lambda part, ids: program(params, extra_state, part)
    return self._embed(embed, tokens, progress, few_shapes=few_shapes)

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
    program = self._program(self._method.scorers[scorer] if scorer else self._method.embed_labels)
    tokens = self._labels if ids is None else self._labels.rows(ids)
    return self._embed(lambda part, ids: program(params, extra_state, part, ids), tokens, ids=ids)

  def texts(
    self,
    params: PyTree,
    extra_state: PyTree,
    tokens: TokenTable | None = None,
    function: Callable[..., Array] | None = None,
  ) -> Table:
    """Returns `[n, D]` embeddings of a table of anchors, or of all labels, by their texts alone.

    They are by a `function` of the method; None is its `embed_texts`, if there is one.
    """
    tokens = self._labels if tokens is None else tokens
    program = self._program(function or self._method.embed_texts or self._method.embed_labels)
    return self._embed(lambda part, ids: program(params, extra_state, part, ids), tokens)

  @contextlib.contextmanager
  def watched(self, watch: Callable[[], None]) -> Iterator[None]:
    """Calls `watch` between the batches of whatever is embedded in the block; it may raise to stop."""
    self._between_batches = watch
    try:
      yield
    finally:
      self._between_batches = None

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
    def on_devices(part: Tokens, which: np.ndarray) -> Array:
      which = which if ids is None else np.where(which >= 0, ids[which], -1)
      return embed(*sharding.split_tree((part, which), self._mesh, *sharding.LABEL_ROWS))

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
      local_rows=sharding.local_rows(size, self._mesh, *sharding.LABEL_ROWS),
      kept=split_table.own_range(len(tokens)),
      packed=self._packed and not few_shapes,
      widths=length_buckets.few_widths(self._max_length) if few_shapes else (),
      progress=after_batch,
    )
    return vectors if runtime.is_alone() else SplitTable(vectors, split_table.row_starts(len(tokens)))


def embed_table(
  embed: Callable[[Tokens, np.ndarray], Array],
  table: TokenTable,
  *,
  batch_size: int,
  max_length: int,
  local_rows: np.ndarray | None = None,
  kept: range | None = None,
  packed: bool = False,
  widths: Sequence[int] = (),
  progress: Callable[[int], None] | None = None,
) -> np.ndarray:
  """Embeds every text of a table.

  Args:
    embed: `(tokens, ids [batch_size]) -> [batch_size, D]`, jitted; ids are row numbers, -1 for padding.
    table: TokenTable of n texts.
    batch_size: texts at a time. `embed` is compiled once per width, and with `packed` also for one number of
      tokens per width.
    max_length: the widest row.
    local_rows: `[batch_size]` bool, the rows of a batch whose texts this process reads; None is all.
    kept: the texts whose embeddings are returned; None is all.
    packed: whether chunks tell the encoder their most real tokens (`Tokens.num_real_tokens`), so that it
      computes no padding. Widths with few chunks do not, as each number of tokens is a compilation.
    widths: the widths in use, ending with `max_length`; () is all multiples of 8 up to it.
    progress: called with the number of texts done.

  Returns:
    `[len(kept), D]` float32, in the table's order.
  """
  kept = range(len(table)) if kept is None else kept

  def chunks() -> Iterator[tuple[np.ndarray, Array]]:
    done = 0
    for width, rows, most in _chunks(table.lengths, batch_size, max_length, widths):
      tokens = table.gather(rows if local_rows is None else np.where(local_rows, rows, -1), width)
      if packed and most:
        tokens = replace(tokens, num_real_tokens=most)
      yield rows, embed(tokens, rows)
      done += int(np.sum(rows >= 0))
      if progress:
        progress(done)

  out = np.zeros((0, 0), np.float32)
  for rows, embedded in one_behind(chunks()):
    vectors = sharding.to_host(embedded)
    if not out.size:
      out = np.empty((len(kept), vectors.shape[1]), np.float32)
    wanted = (rows >= kept.start) & (rows < kept.stop)  # not padding, which is -1
    out[rows[wanted] - kept.start] = vectors[wanted]
  return out


def texts_at_a_time(num_texts: int, batch_size: int) -> int:
  """Returns the batch size: a smaller one for few texts, to cut latency; each size is a compilation."""
  return min([batch_size, *(size for size in (8, 64) if size >= num_texts)])


def _chunks(
  lengths: np.ndarray, size: int, max_length: int, widths: Sequence[int] = ()
) -> Iterator[tuple[int, np.ndarray, int]]:
  """Yields `(width, rows [size], most)` by rising width; rows left over move to the next width.

  `most` is the tokens of a width's fullest chunk, rounded up to a multiple of `size`; 0 if it has few chunks.
  """
  carried = np.zeros(0, np.int64)
  groups = length_buckets.split_by_width(lengths, max_length, widths)
  for position, (width, rows) in enumerate(groups):
    rows = np.concatenate([carried, rows])
    last = position == len(groups) - 1
    whole = len(rows) if last else len(rows) // size * size
    starts = np.arange(0, whole, size)
    tokens = np.add.reduceat(np.minimum(lengths[rows[:whole]], width), starts) if whole else starts
    most = sharding.rounded_up(int(tokens.max()), size) if len(starts) >= _FEW_CHUNKS else 0
    for start in starts:
      chunk = rows[start : min(start + size, whole)]
      yield width, np.pad(chunk, (0, size - len(chunk)), constant_values=-1), most
    carried = rows[whole:]
