"""scipy's sparse matrices in .npz files."""

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from xmc_jax.data.formats.lines import open_bytes, reading, refuse_overpacked
from xmc_jax.data.formats.source import Pairs, Place, one_line
from xmc_jax.errors import DataError

if TYPE_CHECKING:
  import scipy.sparse as sp


class NpzMatrix:
  """Reads a scipy matrix. Holds it in memory: its entries and, for CSR, the row offsets."""

  def __init__(self, path: Path):
    self.path = path
    try:
      with reading(path), open_bytes(path) as file:
        self._matrix = _load(file, path.stat().st_size)
    except DataError:
      raise
    except Exception as error:  # a damaged zip can fail in any of its layers
      what = "expected a matrix saved by scipy.sparse.save_npz"
      raise DataError(f"{path}: {what} ({one_line(error)})") from None
    self.shape = self._matrix.shape
    self._done = 0

  def take(self, num: int) -> Pairs:
    """Returns the next `num` rows, or the rest; none after the last."""
    first, end = self._done, min(self._done + num, self.shape[0])
    self._done = end
    if self._matrix.format == "csr":
      indptr = self._matrix.indptr[first : end + 1]
      piece, ids = slice(indptr[0], indptr[-1]), self._matrix.indices
      counts = np.diff(indptr).astype(np.int64)
    else:
      ends = np.array((first, end), self._matrix.row.dtype)  # with another type numpy would convert all rows
      piece, ids = slice(*np.searchsorted(self._matrix.row, ends)), self._matrix.col
      counts = np.bincount(self._matrix.row[piece] - first, minlength=end - first)
    place = Place(self.path, range(first + 1, end + 1), "row")
    with np.errstate(over="ignore"):  # values too large for float32 become infinite, and are refused later
      values = self._matrix.data[piece].astype(np.float32)
    return Pairs(counts, ids[piece].astype(np.int64), values, place)

  def close(self) -> None:
    self._matrix = None


def _load(file: BinaryIO, size: int) -> "sp.csr_matrix | sp.coo_matrix":
  """Loads the matrix: CSR as it is, any other format as COO entries ordered by row.

  COO, because CSR would need an offset for each row, however many rows the file claims to have.
  """
  import scipy.sparse

  with zipfile.ZipFile(file) as archive:
    refuse_overpacked(archive, size)
  file.seek(0)
  matrix = scipy.sparse.load_npz(file)
  if matrix.ndim != 2:
    raise ValueError(f"{matrix.ndim} dimensions")
  if matrix.dtype.kind not in "biuf":
    raise ValueError(f"data of type {matrix.dtype}")
  if matrix.format == "csr":
    if np.any(np.diff(matrix.indptr) < 0):
      raise ValueError("indptr decreases")
    return matrix
  matrix = matrix.tocoo()
  order = np.argsort(matrix.row, kind="stable")
  entries = (matrix.data[order], (matrix.row[order], matrix.col[order]))
  return scipy.sparse.coo_matrix(entries, shape=matrix.shape)
