"""Embeds a whole table of texts, with few shapes and little padding."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from xmc_jax.batching import length_buckets
from xmc_jax.data.tokens import TokenTable
from xmc_jax.distributed import sharding
from xmc_jax.types import Array, Tokens

_FEW_CHUNKS = 4


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
  out, waiting = None, None

  def store(rows: np.ndarray, vectors: Array) -> None:
    nonlocal out
    vectors = sharding.to_host(vectors)
    if out is None:
      out = np.empty((len(kept), vectors.shape[1]), np.float32)
    wanted = (rows >= kept.start) & (rows < kept.stop)  # not padding, which is -1
    out[rows[wanted] - kept.start] = vectors[wanted]

  done = 0
  for width, rows, most in _chunks(table.lengths, batch_size, max_length, widths):
    tokens = table.gather(rows if local_rows is None else np.where(local_rows, rows, -1), width)
    if packed and most:
      tokens = replace(tokens, num_real_tokens=most)
    vectors = embed(tokens, rows)
    if waiting:  # the device works on this chunk while the host stores the previous one
      store(*waiting)
    waiting = (rows, vectors)
    done += int(np.sum(rows >= 0))
    if progress:
      progress(done)
  if waiting:
    store(*waiting)
  return out if out is not None else np.zeros((0, 0), np.float32)


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
