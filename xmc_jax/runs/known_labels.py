"""Tells of a run's labels: keys, names, what a vocabulary says of each, and which may be answers."""

import abc
import functools
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from xmc_jax.data import Dataset
from xmc_jax.data.vocabulary.concepts import in_language
from xmc_jax.errors import UserError
from xmc_jax.runs.label_filter import LabelFilter
from xmc_jax.runs.run import Run


class KnowsLabels(abc.ABC):
  """Is a mixin of `Model`: keys, names and filters of labels."""

  _run: Run
  _chosen: str  # the scores that rank
  _takes_filters: bool  # whether they leave labels out
  _filter: tuple[Dataset, LabelFilter] | None = None

  @property
  @abc.abstractmethod
  def dataset(self) -> Dataset:
    """Returns the run's data, with the labels that it has learnt."""

  @property
  def labels(self) -> Sequence[str]:
    """Returns what is shown of the L labels, their names or texts; a label's id is its position."""
    return self.dataset.label_names

  @property
  def keys(self) -> Sequence[str]:
    """Returns the keys of the L labels, by id: the user's own names for them; texts where there are none."""
    return self.dataset.label_keys

  @functools.cached_property
  def language(self) -> str:
    """Returns the language of the labels' names, such as 'fi'; '' if it is not known."""
    names = [self.dataset.concept(label).get("names", {}) for label in range(len(self.labels[:100]))]
    shown = Counter(tag for label, by in enumerate(names) for tag in by if by[tag] == self.labels[label])
    given = self._run.config.data.get("language", "").partition("+")[0]
    return max(shown, key=shown.__getitem__, default="") or given

  @functools.cached_property
  def languages(self) -> list[str]:
    """Returns the languages that labels have names in, such as ['en', 'fi']; [] without a vocabulary."""
    concepts = map(json.loads, self.dataset.label_concepts or ())
    return sorted({tag for concept in concepts for tag in concept["names"]} - {""})

  def concept(self, label: int) -> dict[str, Any]:
    """Returns what the vocabulary says of a label: `names`, `notation`, `broader`, …; {} without one."""
    return self.dataset.concept(label)

  def notation(self, label: int) -> str:
    """Returns a label's notation in the vocabulary; '' if it has none."""
    return self.dataset.notation(label)

  def name(self, label: int, language: str = "") -> str:
    """Returns a label's name in a language; the one that the run shows if the vocabulary has no other."""
    return self.dataset.label_name(label, language)

  def check_language(self, language: str) -> None:
    """Raises UserError if no label has a name in the language; '' is the run's own."""
    if language and in_language(dict.fromkeys(self.languages, True), language) is None:
      known = ", ".join(self.languages) or "none, as the data have no vocabulary"
      raise UserError(f"language = {language!r:.40}: labels have names in {known}")

  @functools.cached_property
  def parts(self) -> list[int]:
    """Returns labels with others below and none above, by notation; [] if `predict` takes no keys."""
    tops = self._filter_of(self.dataset).tops if self._takes_filters else []
    return sorted(tops, key=lambda label: (self.dataset.notation(label), self.labels[label]))

  def where(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> np.ndarray | None:
    """Returns `[L]` bool, True = a label that these keys leave to `predict`; None is all.

    Raises:
      UserError: a key is no label's, or the scores are a method's own, which rank all labels.
    """
    return self._where(self.dataset, include, exclude)

  def _where(self, dataset: Dataset, include: Sequence[str], exclude: Sequence[str]) -> np.ndarray | None:
    where = self._filter_of(dataset).where(tuple(include), tuple(exclude))
    if self._takes_filters:
      return where
    if include or exclude:
      raise UserError(f"include and exclude do not go with --scores={self._chosen}; give --scores=hybrid")
    return None

  def _filter_of(self, dataset: Dataset) -> LabelFilter:
    if not self._filter or self._filter[0] is not dataset:
      self._filter = dataset, LabelFilter(dataset.label_keys, dataset.label_concepts or ())
    return self._filter[1]
