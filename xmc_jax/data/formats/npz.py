"""scipy's sparse matrices in .npz files, which are checked before they are loaded."""

import math
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from xmc_jax.data.formats.lines import open_bytes, reading, refuse_overpacked
from xmc_jax.data.formats.source import Pairs, Place, one_line
from xmc_jax.errors import DataError

if TYPE_CHECKING:
  import scipy.sparse as sp

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_KINDS = {"data": "biuf", "format": "SU"}  # all other arrays hold counts or indices: whole numbers


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

  _refuse_bad_members(file, size)
  file.seek(0)
  matrix = scipy.sparse.load_npz(file)
  if matrix.ndim != 2:
    raise ValueError(f"{matrix.ndim} dimensions")
  if matrix.format == "csr":
    if np.any(np.diff(matrix.indptr) < 0):
      raise ValueError("indptr decreases")
    return matrix
  matrix = matrix.tocoo()
  order = np.argsort(matrix.row, kind="stable")
  entries = (matrix.data[order], (matrix.row[order], matrix.col[order]))
  return scipy.sparse.coo_matrix(entries, shape=matrix.shape)


def _refuse_bad_members(file: BinaryIO, size: int) -> None:
  """Checks the members by their headers alone, because a small file may decompress to a huge size."""
  with zipfile.ZipFile(file) as archive:
    refuse_overpacked(archive, size)
    for entry in archive.infolist():
      name = entry.filename.removesuffix(".npy")
      with archive.open(entry) as member:
        shape, _, dtype = _HEADERS[np.lib.format.read_magic(member)](member)
      if dtype.kind not in _KINDS.get(name, "biu"):
        raise ValueError(f"{name} of type {dtype}")
      if math.prod(shape) * dtype.itemsize > entry.file_size:
        raise ValueError(f"{name} of shape {shape} in {entry.file_size} bytes")
