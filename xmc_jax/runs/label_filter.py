"""Chooses which labels may be answers."""

import functools
from collections.abc import Sequence

import numpy as np

from xmc_jax.errors import UserError

_KEPT = 64  # filters


class LabelFilter:
  """Finds labels by their keys.

  Args:
    keys: `[L]` the keys of the labels.
  """

  def __init__(self, keys: Sequence[str]):
    self._keys = keys
    self.where = functools.lru_cache(_KEPT)(self._where)

  def _where(self, include: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> np.ndarray | None:
    """Returns `[L]` bool, True = a label that may be an answer; None is all labels.

    Args:
      include: keys of labels; () is all labels.
      exclude: keys of labels that are no answers.

    Raises:
      UserError: a key is no label's.
    """
    if not (include or exclude):
      return None
    where = np.full(len(self._keys), not include)
    where[self._ids("include", include)] = True
    where[self._ids("exclude", exclude)] = False
    return where

  @functools.cached_property
  def _id_of(self) -> dict[str, int]:
    return {key: label for label, key in enumerate(self._keys)}

  def _ids(self, name: str, keys: tuple[str, ...]) -> list[int]:
    for key in keys:
      if key not in self._id_of:
        raise UserError(f"{name}: {key!r:.80} is the key of no label, such as {self._keys[0]!r:.80}")
    return [self._id_of[key] for key in keys]
