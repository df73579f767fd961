"""Holds tables of vectors whose rows are split over the processes of a run, in host memory.

Methods and functions that are called collective must be called by all processes, in the same order and with
the same arguments.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import TypeAlias, TypeVar, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xmc_jax.types import Array

_BLOCK_BYTES = 1 << 25  # bytes of rows that all processes hold at a time


class SplitTable:
  """Holds a table `[n, D]` float32 of which each process has some rows: those of its range.

  Args:
    own: `[m, D]` the rows of this process.
    starts: `[P + 1]`; process p of P has the rows from starts[p] to starts[p + 1].
  """

  def __init__(self, own: np.ndarray, starts: np.ndarray):
    self.own, self._starts = own, starts

  @property
  def first(self) -> int:
    """Returns the row number of this process's first row."""
    return int(self._starts[jax.process_index()])

  @property
  def own_rows(self) -> slice:
    """Returns the rows that this process has."""
    return slice(self.first, self.first + len(self.own))

  @property
  def shape(self) -> tuple[int, int]:
    """Returns (n, D)."""
    return int(self._starts[-1]), self.own.shape[1]

  def __len__(self) -> int:
    return self.shape[0]

  def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
    """Returns rows `[r, D]`, on every process; collective. For columns see `columns`.

    Raises:
      IndexError: there is no such row.
      TypeError: anything else is given, such as a mask.
    """
    numbers = np.arange(len(self))[rows] if isinstance(rows, slice) else np.asarray(rows)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
      raise TypeError(f"rows of a split table are chosen by a slice or by numbers, not by {rows!r:.60}")
    if len(wrong := numbers[(numbers < 0) | (numbers >= len(self))]):
      raise IndexError(f"row {wrong[0]} of a table of {len(self):,} rows")
    return self._joined(self.own, numbers)

  def gather(self, own: np.ndarray) -> np.ndarray:
    """Joins arrays `[m, ...]` of 4 bytes, an entry for each row of a process, to `[n, ...]`; collective."""
    return self._joined(own, np.arange(len(self)))

  def _joined(self, own: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Returns the entries of rows `numbers`, of which `own` has those of this process."""
    found = np.empty((len(numbers), *own.shape[1:]), own.dtype)
    for part in _parts(len(numbers), own.itemsize * math.prod(own.shape[1:])):
      mine, places = self._held(numbers[part])
      entries = np.zeros((len(mine), *own.shape[1:]), own.dtype)
      entries[mine] = own[places]
      bits = sum_over_processes(entries.view(np.uint32))  # an entry is of one process; the others add 0
      found[part] = bits.view(own.dtype)
    return found

  def _held(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns which of these rows this process has, bool, and their places in `own`."""
    mine = (numbers >= self.first) & (numbers < self.first + len(self.own))
    return mine, numbers[mine] - self.first

  def blocks(self, numbers: np.ndarray | None = None) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields `(part, rows)`, those of `numbers[part]`, on every process; None is all. Collective."""
    numbers = np.arange(len(self)) if numbers is None else numbers
    for part in _parts(len(numbers), 4 * self.shape[1]):
      yield part, self[numbers[part]]

  def take(self, rows: np.ndarray) -> "SplitTable":
    """Returns a table of rows in rising order; they stay where they are."""
    return SplitTable(self.own[self._held(rows)[1]], np.searchsorted(rows, self._starts))

  def map(self, function: Callable[[np.ndarray], np.ndarray]) -> "SplitTable":
    """Returns a table with `[m, D] -> [m, D']` applied to each process's rows themselves, not to a copy."""
    return SplitTable(np.asarray(function(self.own), np.float32), self._starts)

  def inner_products(self, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns `[b, C]` inner products of queries `[b, D]` with their rows `[b, C]`; collective."""
    places = rows - self.first
    mine = (places >= 0) & (places < len(self.own))
    products = np.zeros(rows.shape, np.float32)
    products[mine] = np.einsum("nd,nd->n", self.own[places[mine]], queries[np.nonzero(mine)[0]])
    return sum_over_processes(products)

  def placed(self, sharding: jax.sharding.Sharding, num_rows: int) -> jax.Array:
    """Returns the table on the devices, with zero rows appended until there are `num_rows`; collective.

    The sharding splits rows only. Every process makes the rows of its own devices.
    """
    shape = (num_rows, self.shape[1])
    parts: dict[tuple[int, int], np.ndarray] = {}
    for index in sharding.addressable_devices_indices_map(shape).values():
      start, stop = _range(index, num_rows)
      parts.setdefault((start, stop), np.zeros((stop - start, shape[1]), np.float32))
    for rows, block in self.blocks():
      for (start, stop), part in parts.items():
        low, high = max(start, rows.start), min(stop, rows.stop)
        if low < high:
          part[low - start : high - start] = block[low - rows.start : high - rows.start]
    return jax.make_array_from_callback(shape, sharding, lambda index: parts[_range(index, num_rows)])


Table: TypeAlias = np.ndarray | SplitTable
AnyTable = TypeVar("AnyTable", bound=Table)


def _range(index: tuple[slice, ...] | None, num_rows: int) -> tuple[int, int]:
  start, stop, _ = (index or (slice(None),))[0].indices(num_rows)
  return start, stop


def _parts(num_rows: int, row_bytes: int) -> Iterator[slice]:
  """Yields slices of rows that together take some 32 MB; the same ones on every process."""
  size = max(1, _BLOCK_BYTES // max(1, row_bytes))
  return (slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size))


def row_starts(num_rows: int) -> np.ndarray:
  """Returns `[P + 1]`: process p of P has the rows from starts[p] to starts[p + 1] of a table."""
  count = jax.process_count()
  return np.arange(count + 1) * num_rows // count


def own_range(num_rows: int) -> range:
  """Returns the rows of a table that this process has."""
  starts, own = row_starts(num_rows), jax.process_index()
  return range(int(starts[own]), int(starts[own + 1]))


def split(array: np.ndarray) -> Table:
  """Splits an array that every process has; returns it as it is if there is one process."""
  if jax.process_count() == 1:
    return array
  own = own_range(len(array))
  return SplitTable(array[own.start : own.stop], row_starts(len(array)))


def columns(table: AnyTable, chosen: slice | np.ndarray) -> AnyTable:
  """Returns some columns of a table `[n, D]`."""
  return map_rows(table, lambda rows: rows[:, chosen])


def map_rows(table: AnyTable, function: Callable[[np.ndarray], np.ndarray]) -> AnyTable:
  """Applies `[n, D] -> [n, D']` to a table, or to the rows of each process."""
  found = table.map(function) if isinstance(table, SplitTable) else function(cast(np.ndarray, table))
  return cast(AnyTable, found)


def used_columns(table: Table) -> np.ndarray:
  """Returns `[D]` bool, which columns are not all 0; collective if the table is split."""
  own = table.own if isinstance(table, SplitTable) else table
  used = np.asarray(own.any(axis=0))
  return sum_over_processes(used.astype(np.int32)) > 0 if isinstance(table, SplitTable) else used


def rows_of(table: Table, rows: np.ndarray) -> Table:
  """Returns some rows of a table, in rising order; those of a split one stay where they are."""
  return table.take(rows) if isinstance(table, SplitTable) else table[rows]


def whole(table: Table) -> np.ndarray:
  """Returns a whole table; collective if it is split."""
  return table[:] if isinstance(table, SplitTable) else table


def sum_over_processes(array: np.ndarray) -> np.ndarray:
  """Adds the arrays of all processes, of equal shapes and types; all get the same sum; collective."""
  if jax.process_count() == 1 or not array.size:
    return array
  mesh, add = _over_processes()
  own = mesh.local_devices[0]
  split_over = NamedSharding(mesh, PartitionSpec("process"))
  shape, part = (mesh.size, *array.shape), jax.device_put(array[None], own)
  summed = add(jax.make_array_from_single_device_arrays(shape, split_over, [part]))
  return np.asarray(summed.addressable_data(0))


@functools.cache
def _over_processes() -> tuple[Mesh, Callable[[Array], jax.Array]]:
  """Returns a mesh of the first device of each process, and a program that adds what they hold."""
  devices = {device.process_index: device for device in reversed(jax.devices())}
  mesh = Mesh([devices[number] for number in sorted(devices)], ("process",))
  add = jax.jit(lambda x: x.sum(axis=0, dtype=x.dtype), out_shardings=NamedSharding(mesh, PartitionSpec()))
  return mesh, add
