"""Finds rows with the same text, from a hash of each row's text: eight bytes a row."""

from array import array
from collections.abc import Iterable

import numpy as np


def hashes_of(texts: Iterable[str], num_before: int) -> list[int]:
  """Returns a 64-bit hash of each text, valid in this process; an empty text is like no other.

  Args:
    texts: the texts of consecutive rows.
    num_before: how many rows come before them.
  """
  return [hash(text if text.strip() else (None, num_before + row)) for row, text in enumerate(texts)]


class TextGroups:
  """Holds which rows have the same text.

  Attributes:
    group: `[rows]` int64, the number of each row's text, in order of first appearance.
    is_later: `[rows]` bool, whether an earlier row has the same text.
    num_groups: how many different texts there are.
  """

  def __init__(self, hashes: "array[int]"):
    _, first, inverse = np.unique(np.frombuffer(hashes, np.int64), return_index=True, return_inverse=True)
    self.group = np.argsort(np.argsort(first))[inverse]
    self.is_later = np.ones(len(inverse), bool)
    self.is_later[first] = False
    self.num_groups = len(first)
