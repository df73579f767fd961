"""Texts stored as one array of UTF-8 bytes, and a sequence that decodes them on access."""

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from xmc_jax.data.arrays import Ragged, lengths_of


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
