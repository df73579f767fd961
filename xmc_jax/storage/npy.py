"""Writes .npy files whole or not at all, and opens them memory-mapped."""

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from xmc_jax.errors import DataError
from xmc_jax.storage import atomic


def write(path: Path, array: np.ndarray) -> None:
  """Writes an array, if there is room for it."""
  atomic.check_room(path.parent, array.nbytes, path.name)
  with atomic.written_whole(path) as beside, beside.open("wb") as file:
    np.save(file, array)


def write_blocks(path: Path, shape: tuple[int, ...], blocks: Iterable[np.ndarray]) -> None:
  """Writes float32 rows of this shape, block by block; as `write` does."""
  atomic.check_room(path.parent, 4 * math.prod(shape), path.name)
  header = {"descr": "<f4", "fortran_order": False, "shape": shape}
  with atomic.written_whole(path) as beside, beside.open("wb") as file:
    np.lib.format.write_array_header_1_0(file, header)
    for block in blocks:
      file.write(np.ascontiguousarray(block, "<f4").data)


def read(
  path: Path, num_rows: int | None = None, remedy: str = "delete it, and it is made again"
) -> np.ndarray:
  """Opens an array, memory-mapped and read-only; of `num_rows` rows, if given.

  Raises:
    DataError: the file is missing or damaged, or has another length.
  """
  try:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if isinstance(array, np.ndarray) and array.ndim and num_rows in (None, len(array)):
      return array
    reason = "it holds no array" if num_rows is None else f"it holds no array of {num_rows} rows"
  except Exception as error:  # the header is Python text, and numpy raises any error of Python's parser
    reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
  raise DataError(f"{path}: not readable ({reason}); {remedy}")
