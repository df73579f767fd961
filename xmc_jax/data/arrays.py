"""Flat .npy files, written piece by piece and read memory-mapped; ragged rows in them, and texts."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self, cast, overload

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_jax.errors import DataError
from xmc_jax.storage import npy


class ArrayFile:
  """Writes a one-dimensional .npy file whose length is known only at the end; see ArrayFolder."""

  def __init__(self, path: Path, dtype: npt.DTypeLike):
    self.length = 0
    self._dtype = np.dtype(dtype)
    self._file = open(path, "wb")  # noqa: SIM115 (open until `close`)
    self._write_header()

  def close(self) -> None:
    with self._file:
      # numpy leaves room in the header for a longer shape, so the header can be rewritten in place.
      self._file.seek(0)
      self._write_header()

  def append(self, array: np.ndarray) -> None:
    self._file.write(np.ascontiguousarray(array, self._dtype).data)
    self.length += len(array)

  def _write_header(self) -> None:
    header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.length,)}
    np.lib.format.write_array_header_1_0(self._file, header)


class ArrayFolder(contextlib.ExitStack):
  """Holds the .npy files of a folder open for writing; closes all of them on exit."""

  def __init__(self, path: Path):
    super().__init__()
    self._path = path

  def array(self, name: str, dtype: npt.DTypeLike) -> ArrayFile:
    """Opens `NAME.npy` for writing."""
    return self.enter_context(contextlib.closing(ArrayFile(self._path / f"{name}.npy", dtype)))


class RaggedFile:
  """Writes rows of different lengths one after the other to `NAME.npy`.

  Writes their `[n + 1]` int64 offsets to `NAME_offsets.npy`.
  """

  def __init__(self, folder: ArrayFolder, name: str, dtype: npt.DTypeLike):
    self._values = folder.array(name, dtype)
    self._offsets = folder.array(f"{name}_offsets", np.int64)
    self._offsets.append(np.zeros(1, np.int64))

  def append(self, values: np.ndarray, lengths: np.ndarray) -> None:
    self._offsets.append(self._values.length + np.cumsum(lengths, dtype=np.int64))
    self._values.append(values)


class CsrFile:
  """Writes a sparse matrix: column ids as a RaggedFile and, if `with_values`, float32 values."""

  def __init__(self, folder: ArrayFolder, name: str, with_values: bool = True):
    self._columns = RaggedFile(folder, f"{name}.columns", np.int32)
    self._values = folder.array(f"{name}.values", np.float32) if with_values else None

  def append(self, counts: np.ndarray, columns: np.ndarray, values: np.ndarray | None = None) -> None:
    self._columns.append(columns, counts)
    if self._values is not None:
      self._values.append(cast(np.ndarray, values))  # a matrix with values is given some


def read_ragged(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
  """Opens the values and the offsets of a RaggedFile, memory-mapped and read-only.

  Raises:
    DataError: a file is missing, is no array, or has offsets that do not fit.
  """
  path = folder / f"{name}_offsets.npy"
  values, offsets = _read(folder / f"{name}.npy"), _read(path)
  if offsets[[0, -1]].tolist() != [0, len(values)] or np.any(offsets[1:] < offsets[:-1]):
    expected = f"offsets that grow from 0 to {len(values)}, the length of {name}.npy"
    raise DataError(f"{path}: expected {expected}; prepare the data again")
  return values, offsets


def read_csr(folder: Path, name: str, shape: tuple[int, int]) -> sp.csr_matrix:
  """Reads a CsrFile as a scipy csr: float32 with values, bool without."""
  columns, offsets = read_ragged(folder, f"{name}.columns")
  values_path = folder / f"{name}.values.npy"
  values = _read(values_path) if values_path.exists() else np.ones(len(columns), bool)
  matrix = sp.csr_matrix((values, columns, offsets), shape=shape)
  # Columns were written sorted and distinct. Without this flag scipy would check, and may sort in place.
  matrix.has_canonical_format = True
  return matrix


def _read(path: Path) -> np.ndarray:
  return npy.read(path, remedy="prepare the data again").view(np.ndarray)


class Ragged:
  """Holds rows of different lengths `[n]` in one flat array, in memory or memory-mapped."""

  def __init__(self, values: np.ndarray, starts: np.ndarray, lengths: np.ndarray):
    self._values, self._starts, self.lengths = values, starts, lengths

  @classmethod
  def of_offsets(cls, values: np.ndarray, offsets: np.ndarray) -> Self:
    """Takes the rows from flat values and the `[n + 1]` offsets of each."""
    return cls(values, offsets[:-1], np.diff(offsets))

  def __len__(self) -> int:
    return len(self._starts)

  def rows(self, indices: slice | np.ndarray) -> Self:
    """Returns these rows alone; they share the values."""
    return type(self)(self._values, self._starts[indices], self.lengths[indices])

  def followed_by(self, more: Self) -> Self:
    """Returns these rows and then the others; copies all values into memory."""
    starts = np.concatenate([self._starts, len(self._values) + more._starts])
    lengths = np.concatenate([self.lengths, more.lengths])
    return type(self)(np.concatenate([self._values, more._values]), starts, lengths)


def lengths_of(rows: Iterable) -> np.ndarray:
  """Returns `[n]` int64, the length of each row."""
  return np.fromiter(map(len, rows), np.int64)


def well_formed(texts: list[str]) -> list[str]:
  """Returns the texts with U+FFFD for lone surrogates, which JSON can contain but UTF-8 cannot encode."""
  try:
    "".join(texts).encode()
    return texts
  except UnicodeEncodeError:
    return [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]


def utf8(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
  """Returns the bytes of well-formed texts, one after the other, and the `[n]` int64 length of each."""
  encoded = [text.encode() for text in texts]
  return np.frombuffer(b"".join(encoded), np.uint8), lengths_of(encoded)


class Texts(Ragged, Sequence):
  """Holds texts that are decoded on access.

  `texts[3]` is a str; a slice or an array of row numbers returns Texts.
  """

  @overload
  def __getitem__(self, rows: int) -> str: ...

  @overload
  def __getitem__(self, rows: "slice | np.ndarray") -> "Texts": ...

  def __getitem__(self, rows: "int | slice | np.ndarray") -> "str | Texts":
    if isinstance(rows, int | np.integer):
      return self._decoded(int(self._starts[rows]), int(self.lengths[rows]))
    return self.rows(rows)

  def __iter__(self) -> Iterator[str]:
    for start, length in zip(self._starts.tolist(), self.lengths.tolist()):
      yield self._decoded(start, length)

  def _decoded(self, start: int, length: int) -> str:
    # The bytes were written as UTF-8. A disk error should spoil a letter, not stop the run.
    return self._values[start : start + length].tobytes().decode(errors="replace")

  def __repr__(self) -> str:
    shown = ", ".join(repr(self[row]) for row in range(min(len(self), 3)))
    return f"Texts({len(self):,}: {shown}{', ...' if len(self) > 3 else ''})"
