"""Chooses which labels may be answers."""

import functools
import json
from collections import defaultdict
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
    self._keys, self._concepts = keys, [json.loads(concept) for concept in concepts]
    deprecated = [label for label, concept in enumerate(self._concepts) if concept["deprecated"]]
    self._current = np.ones(len(keys), bool)
    self._current[deprecated] = False
    self.where = functools.lru_cache(_KEPT)(self._where)

  def _where(self, include: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> np.ndarray | None:
    """Returns `[L]` bool, True = a label that may be an answer; None is all labels.

    Args:
      include: what may be an answer; () is all labels.
      exclude: what is no answer.

    Raises:
      UserError: a name means no label.
    """
    where = np.full(len(self._keys), not include)
    for name in include:
      where[self._labels("include", name)] = True
    named = [self._id_of[name] for name in include if name in self._id_of]
    where &= self._current
    where[named] = True
    for name in exclude:
      where[self._labels("exclude", name)] = False
    return None if where.all() else where

  def _labels(self, what: str, name: str) -> list[int]:
    """Returns the ids of the labels that a name means."""
    if name in self._id_of:
      return [self._id_of[name]]
    found = []
    if name.startswith(_BELOW):
      found = self._below(name.removeprefix(_BELOW))
    elif name.startswith(_SCHEME):
      found = self._of_scheme[name.removeprefix(_SCHEME)]
    if not found:
      raise UserError(f"{what}: {name!r:.80} is the key of no label, such as {self._keys[0]!r:.80}")
    return found

  def _below(self, key: str) -> list[int]:
    reached, waiting = set(), [key]
    while waiting:
      key = waiting.pop()
      if key not in reached:
        reached.add(key)
        waiting += (self._keys[label] for label in self._narrower[key])
    return [self._id_of[key] for key in reached if key in self._id_of]

  @functools.cached_property
  def _id_of(self) -> dict[str, int]:
    return {key: label for label, key in enumerate(self._keys)}

  @functools.cached_property
  def _narrower(self) -> dict[str, list[int]]:
    return self._by("broader")

  @functools.cached_property
  def _of_scheme(self) -> dict[str, list[int]]:
    return self._by("schemes")

  def _by(self, field: str) -> dict[str, list[int]]:
    """Returns the labels of each URI in a field of the concepts."""
    labels = defaultdict(list)
    for label, concept in enumerate(self._concepts):
      for uri in concept[field]:
        labels[uri].append(label)
    return labels
