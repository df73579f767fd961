"""Chooses which labels may be answers."""

import functools
import json
from collections.abc import Iterable, Sequence

import numpy as np

from xmc_jax.errors import UserError

_KEPT = 64  # filters
_BELOW, _SCHEME = "below:", "scheme:"


class LabelFilter:
  """Finds labels by their keys, and by what a vocabulary says of them.

  `below:KEY` means a label and all that are narrower, `scheme:URI` the labels of a scheme of the vocabulary.

  Args:
    keys: `[L]` the keys of the labels.
    concepts: concepts of the first labels, as JSON; () without a vocabulary. Deprecated ones are answers only
      if they are included by their keys.
  """

  def __init__(self, keys: Sequence[str], concepts: Iterable[str] = ()):
    self._keys, self._current = keys, np.ones(len(keys), bool)
    self._narrower: dict[str, list[int]] = {}
    self._of_scheme: dict[str, list[int]] = {}
    for label, concept in enumerate(map(json.loads, concepts)):
      self._current[label] = not concept["deprecated"]
      for field, labels in (("broader", self._narrower), ("schemes", self._of_scheme)):
        for uri in concept[field]:
          labels.setdefault(uri, []).append(label)
    self.where = functools.lru_cache(_KEPT)(self._where)

  def _where(self, include: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> np.ndarray | None:
    """Returns `[L]` bool, True = a label that may be an answer; None is all, as () is for `include`.

    Raises:
      UserError: a name means no label.
    """
    where = np.full(len(self._keys), not include)
    where[self._labels("include", include)] = True
    where &= self._current
    where[[label for name in include for label in self._ids_of.get(name, ())]] = True
    where[self._labels("exclude", exclude)] = False
    where.setflags(write=False)
    return None if where.all() else where

  @functools.cached_property
  def tops(self) -> list[int]:
    """Returns the labels that others are below, and that are below none."""
    below = {label for key, labels in self._narrower.items() if key in self._ids_of for label in labels}
    return [label for label, key in enumerate(self._keys) if key in self._narrower and label not in below]

  def _labels(self, what: str, names: tuple[str, ...]) -> list[int]:
    ids: list[int] = []
    tops: list[str] = []
    for name in dict.fromkeys(names):
      key = name.removeprefix(_BELOW)
      of_scheme = self._of_scheme.get(name.removeprefix(_SCHEME)) if name.startswith(_SCHEME) else None
      if name in self._ids_of:
        ids += self._ids_of[name]
      elif key != name and (key in self._ids_of or key in self._narrower):
        tops.append(key)
      elif of_scheme:
        ids += of_scheme
      else:
        raise UserError(f"{what}: {name!r:.80} is the key of no label, such as {self._keys[0]!r:.80}")
    return ids + self._below(tops)

  def _below(self, tops: list[str]) -> list[int]:
    """Returns the labels with these keys, and all that are narrower."""
    reached: set[str] = set()
    while tops:
      key = tops.pop()
      if key not in reached:
        reached.add(key)
        tops += (self._keys[label] for label in self._narrower.get(key, ()))
    return [label for key in reached for label in self._ids_of.get(key, ())]

  @functools.cached_property
  def _ids_of(self) -> dict[str, list[int]]:
    ids: dict[str, list[int]] = {}
    for label, key in enumerate(self._keys):
      ids.setdefault(key, []).append(label)
    return ids
