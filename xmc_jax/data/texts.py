"""Texts stored as one array of UTF-8 bytes, and a sequence that decodes them on access."""

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from xmc_jax.data.arrays import lengths_of


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


class Texts(Sequence):
  """Holds texts that are decoded on access.

  `texts[3]` is a str; a slice or an array of row numbers returns Texts.
  """

  def __init__(self, data: np.ndarray, starts: np.ndarray, ends: np.ndarray):
    self._data, self._starts, self._ends = data, starts, ends

  @classmethod
  def of_offsets(cls, data: np.ndarray, offsets: np.ndarray) -> "Texts":
    """Builds texts from their bytes and the `[n + 1]` offsets of each."""
    return cls(data, offsets[:-1], offsets[1:])

  def __len__(self) -> int:
    return len(self._starts)

  @overload
  def __getitem__(self, rows: int) -> str: ...

  @overload
  def __getitem__(self, rows: "slice | np.ndarray") -> "Texts": ...

  def __getitem__(self, rows: "int | slice | np.ndarray") -> "str | Texts":
    starts, ends = self._starts[rows], self._ends[rows]
    if np.ndim(starts):
      return Texts(self._data, starts, ends)
    return self._decoded(int(starts), int(ends))

  def __iter__(self) -> Iterator[str]:
    for start, end in zip(self._starts.tolist(), self._ends.tolist()):
      yield self._decoded(start, end)

  def followed_by(self, more: "Texts") -> "Texts":
    """Returns these texts and then the others; copies all bytes into memory."""
    starts, ends = (
      np.concatenate([own, len(self._data) + other])
      for own, other in ((self._starts, more._starts), (self._ends, more._ends))
    )
    return Texts(np.concatenate([self._data, more._data]), starts, ends)

  def _decoded(self, start: int, end: int) -> str:
    # The bytes were written as UTF-8. A disk error should spoil a letter, not stop the run.
    return self._data[start:end].tobytes().decode(errors="replace")

  def __repr__(self) -> str:
    shown = ", ".join(repr(self[row]) for row in range(min(len(self), 3)))
    return f"Texts({len(self):,}: {shown}{', ...' if len(self) > 3 else ''})"
