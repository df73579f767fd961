"""Clusters vectors that are split over the processes of a run into clusters of equal sizes.

The same halving as in one process (halving.py). At the first levels all processes halve each group together:
every vector stays where it is, and only scores, sums and a sample of vectors are exchanged. When there is a
group for each process, or four where their number is no power of two, each takes some and halves them alone.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from xmc_jax.distributed import runtime, split_table
from xmc_jax.distributed.split_table import SplitTable
from xmc_jax.models import normalize
from xmc_jax.refresh import halving
from xmc_jax.types import Array

_GROUPS = 4  # for each process, at least, where their number does not divide them


def find(vectors: SplitTable, levels: int, *, key: Array) -> np.ndarray:
  """Halves all vectors `levels` times.

  Args:
    vectors: `[N, D]`.
    levels: at most log2 N, rounded up.
    key: a JAX random key. The result depends only on it, the vectors and the number of processes; on a GPU
      also on the order of sums, if `runtime.deterministic` is not set.

  Returns:
    `[N]` int32, the group of each vector, from 0 to 2^levels - 1, on every process.

  Raises:
    ValueError: a vector is not finite; on every process.
  """
  table = _unit_table(vectors)
  together = min(levels, _levels_together())
  members = halving.shuffled(len(vectors), key)[None]
  for _ in range(together):
    members = _halve_together(table, members)
  own = split_table.own_range(len(members))
  parts = [_rows_of_groups(table, members, own)]
  alone = halving.halve(parts, levels - together) if len(own) else np.full((0, 1), -1, np.int32)
  groups, places = np.nonzero(alone >= 0)
  found = np.zeros(len(vectors), np.int32)
  found[alone[groups, places]] = groups + (own.start << (levels - together))
  return split_table.sum_over_processes(found)  # each vector is in a group of one process


def _unit_table(vectors: SplitTable) -> SplitTable:
  """Returns the vectors with length 1; raises ValueError on every process if one is not finite."""
  finite = np.isfinite(vectors.own).all(axis=1)
  if bad := int(split_table.sum_over_processes(np.array([np.sum(~finite)], np.int32))[0]):
    raise ValueError(f"vectors hold NaN or infinity in {bad} rows")
  return vectors.map(lambda rows: halving.unit_rows(_on_device(rows), np.arange(len(rows), dtype=np.int32)))


def _on_device(rows: np.ndarray) -> jax.Array:
  return jax.device_put(rows, runtime.device_with_room(2.5 * rows.nbytes))


def _levels_together() -> int:
  """Returns the number of levels at which all processes halve groups together."""
  count = runtime.num_processes()
  wanted = count if count & (count - 1) == 0 else _GROUPS * count
  return (wanted - 1).bit_length()


def _halve_together(table: SplitTable, members: np.ndarray) -> np.ndarray:
  """Halves groups `[G, P]` of rows of a table of unit vectors, in random order, padded with -1 at the end.

  Returns `[2 G, ceil(P / 2)]`, the halves of a group one after the other.
  """
  where = members >= 0
  groups = np.full(len(table), -1, np.int32)
  groups[members[where]] = np.nonzero(where)[0]
  own, of_own = _on_device(table.own), groups[table.own_rows]

  def summed(chosen: np.ndarray) -> np.ndarray:
    """Returns the sums `[G, D]` of the chosen members `[G, P]`."""
    rows = np.zeros(len(table), bool)
    rows[members[chosen]] = True
    mine = rows[table.own_rows]
    return split_table.sum_over_processes(np.asarray(_sums(own, of_own, mine, len(members))))

  def scored(direction: Array) -> np.ndarray:
    """Returns each member's place along its group's direction, `[G, P]`; 0 for padding."""
    scores = table.gather(np.asarray(_scores(own, of_own, direction)))
    return np.where(where, scores[np.maximum(members, 0)], np.float32(0))

  sample = members[:, : halving.SAMPLE]
  rows = table[np.maximum(sample, 0).ravel()].reshape(*sample.shape, -1) * (sample >= 0)[:, :, None]
  # All take the main process's decisions: other hosts may round differently.
  begun = runtime.from_main_process(halving.start(rows, sample >= 0))
  places, kept = halving.halves(scored(_lloyd(begun, where, summed, scored)), where)
  halves = np.where(kept, np.take_along_axis(members, np.asarray(places), axis=1), -1)
  return np.asarray(runtime.from_main_process(halves.reshape(2 * len(members), -1)))


def _lloyd(
  direction: Array,
  where: np.ndarray,
  summed: Callable[[np.ndarray], np.ndarray],
  scored: Callable[[Array], np.ndarray],
) -> Array:
  """Runs Lloyd's iterations from a direction `[G, D]`, by sums and scores of all processes."""
  count = where.sum(axis=1)
  total, last, rising = summed(where), np.full(len(where), -np.inf), np.full(len(where), True)
  for _ in range(halving.LAST_ITERATIONS):
    keys, threshold = halving.largest(scored(direction), where, (count + 1) // 2)
    first = summed(np.asarray(keys >= threshold) & where)
    second = total - first
    similarity = np.linalg.norm(first, axis=1) + np.linalg.norm(second, axis=1)
    found = jnp.where(rising[:, None], normalize(first) - normalize(second), direction)
    direction = runtime.from_main_process(found)
    rising = rising & (similarity - last > halving.TOLERANCE * count)
    rising = np.asarray(runtime.from_main_process(rising))
    last = similarity
    if not rising.any():
      break
  return direction


@jax.jit
def _scores(rows: Array, groups: Array, direction: Array) -> Array:
  """Returns `[m]`, the product of each row with its group's direction; 0 without a group."""
  of_row = jnp.take(direction, groups, axis=0, mode="fill", fill_value=0)
  return jnp.einsum("nd,nd->n", rows, of_row, precision=jax.lax.Precision.HIGHEST)


@functools.partial(jax.jit, static_argnames="num_groups")
def _sums(rows: Array, groups: Array, chosen: Array, num_groups: int) -> Array:
  """Returns `[G, D]`, the sums of each group's chosen rows."""
  return jax.ops.segment_sum(rows * chosen[:, None], jnp.where(chosen, groups, num_groups), num_groups)


def _rows_of_groups(table: SplitTable, members: np.ndarray, own: range) -> tuple[jax.Array, jax.Array]:
  """Returns the rows of this process's groups `[g, P, D]`, and their numbers `[g, P]`."""
  kept = np.zeros((len(own), members.shape[1], table.shape[1]), np.float32)
  groups, places = np.nonzero(members >= 0)
  for part, rows in table.blocks(members[groups, places]):  # every process looks at all groups
    mine = (groups[part] >= own.start) & (groups[part] < own.stop)
    kept[groups[part][mine] - own.start, places[part][mine]] = rows[mine]
  return _on_device(kept), jnp.asarray(members[own.start : own.stop])
