"""What `XMCClassifier` learns after its training: labelled texts, and labels by their texts."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from xmc_jax import console
from xmc_jax.data import label_values
from xmc_jax.data.label_sets import LabelSpace
from xmc_jax.data.label_values import ID, NAME, NAMES, Labels, items_of, shown, texts_of
from xmc_jax.errors import DataError
from xmc_jax.estimator import settings
from xmc_jax.estimator.fitted import Fitted
from xmc_jax.runs.model import Model

_NAMED, _ONE = (NAME, NAMES), (NAME, ID)


class LabelsError(DataError, ValueError):
  """Reports labels or classes that do not go with those of the training; scikit-learn wants a ValueError."""


class Learns(BaseEstimator):
  """Is the part of `XMCClassifier` that changes a fitted estimator without training it anew."""

  classes_: np.ndarray
  scores: str
  verbose: int
  new_labels: bool
  _fitted: Fitted
  _train: Callable[[list[str], Labels, LabelSpace], Self]

  def partial_fit(self, texts: Any, labels: Any, classes: Any = None) -> Self:
    """Trains at the first call, as `fit` does; from then on learns texts at once, as `learn` does.

    Args:
      texts: n texts.
      labels: their labels, in the form that the first call, or `fit`, got.
      classes: at the first call, all names or ids that may come in later calls, or the names of a matrix's
        columns; those without a text can be predicted by their names. None: the labels of the first call.
        Later, None or the same ones.

    Returns:
      The estimator.

    Raises:
      DataError: as `fit` and `learn`; or classes are others than at the first call (a ValueError, too).
    """
    if hasattr(self, "classes_"):
      if classes is not None:
        _check_same(items_of(classes, "classes"), self.classes_.tolist(), self._fitted.num_trained)
      self.learn(texts, labels)
      return self
    texts = texts_of(texts, "texts")
    given = Labels(labels, len(texts))
    if classes is None:
      return self._train(texts, given, LabelSpace.of(given))
    return self._train(texts, given, _space(given, items_of(classes, "classes"), self.new_labels))

  def learn(self, texts: Any, labels: Any) -> np.ndarray:
    """Remembers labelled texts from the next prediction on; trains nothing. See `xmc_jax.Model.learn`.

    A text that is known already has these labels in place of its own; with none it is forgotten. A pickle
    has what was learnt; with `workdir`, the folder has it.

    Args:
      texts: n texts.
      labels: their labels, in the form that `fit` got. Relevances count as 1.

    Returns:
      `[n]` int64 numbers of the texts, for `unlearn`.

    Raises:
      DataError: a label is none of `classes_`, and is no name or `new_labels` is not set; the form or the
        number of columns is another (each a ValueError, too); or texts are wrong.
      UserError: `scores` are a method's own, or the disk is full.
    """
    check_is_fitted(self)
    texts = texts_of(texts, "texts")
    with self._learning() as model:
      given, dataset = Labels(labels, len(texts)), model.dataset
      self._fitted.follow(dataset)
      space = self._fitted.space
      try:
        new = _new(space, given, self.new_labels)
        named = _named(given, space, dataset.label_keys, new)
      except DataError as error:
        raise LabelsError(str(error)) from None
      return model.learn(texts, named, new_labels=bool(new))

  def unlearn(self, numbers: Iterable[int]) -> None:
    """Forgets for good the texts that `learn` returned these numbers for; see `xmc_jax.Model.unlearn`.

    Raises:
      UserError: a number is unknown.
    """
    with self._learning() as model:
      model.unlearn(numbers)

  def undo(self) -> int:
    """Forgets for good the texts of the last `learn` or `partial_fit`; returns how many.

    Raises:
      UserError: nothing was learnt.
    """
    with self._learning() as model:
      return model.undo()

  def add_labels(self, texts: Any) -> np.ndarray:
    """Adds labels by their texts alone, without training; predictions include them at once.

    Args:
      texts: n label texts; those of known labels change nothing.

    Returns:
      `[n]` int32 columns of the labels with these texts.

    Raises:
      UserError: the method ranks labels by more than their texts, a text is empty, or new labels were learnt.
    """
    check_is_fitted(self)
    with self._printing():
      columns = self._fitted.add_labels(texts_of(texts, "texts"))
    self.classes_ = self._fitted.space.classes
    return columns

  def _printing(self) -> contextlib.AbstractContextManager:
    return contextlib.nullcontext() if self.verbose else console.quiet()

  @contextlib.contextmanager
  def _opened(self) -> Iterator[Model]:
    """Yields the trained model; refuses an estimator that is not fitted."""
    check_is_fitted(self)
    with self._printing(), settings.named_by_parameters():
      model = self._fitted.model(self.scores)
      self.classes_ = self._fitted.space.classes  # which another process may have added to
      yield model

  @contextlib.contextmanager
  def _learning(self) -> Iterator[Model]:
    """Yields the model; `classes_` has the labels that it learns in the block."""
    with self._opened() as model:
      try:
        yield model
      finally:  # it may have read what others have learnt
        self._fitted.follow(model.dataset)
        self.classes_ = self._fitted.space.classes


def _space(given: Labels, classes: list, grows: bool) -> LabelSpace:
  """Returns the space of all classes; refuses labels that are none of them, unless names may be new."""
  if label_values.is_matrix(given.rows):
    if len(classes) != given.rows.shape[1]:
      raise LabelsError(f"classes has {len(classes)} names, and labels has {given.rows.shape[1]} columns")
    return LabelSpace.of(given, texts_of(classes, "classes"))
  is_one = label_values.flattened(given).kind in _ONE
  listed = Labels(classes if is_one else [[each] for each in classes], len(classes), "classes")
  new = _new(LabelSpace.of(listed), given, grows)
  return LabelSpace.of(listed, None, *([given] if new else []))


def _check_same(classes: list, known: list, num_trained: int) -> None:
  """Refuses classes without one of the training, or with one that is not known."""
  given, all_known = set(classes), set(known)
  if others := [each for each in classes if each not in all_known]:
    raise LabelsError(f"classes: {shown(others[0])} is not one of the {len(known):,} until now")
  if missing := [each for each in known[:num_trained] if each not in given]:
    raise LabelsError(f"classes: {shown(missing[0])} is missing; give those of the first call, or none")


def _new(space: LabelSpace, given: Labels, grows: bool) -> list[str]:
  """Returns the names that are no classes yet; refuses any, unless the space `grows`."""
  new = space.unknown(given)
  if odd := [name for name in new if grows and space.kind in _NAMED and name != " ".join(name.split())]:
    raise LabelsError(f"labels: {shown(odd[0])} has spaces around it or several in a row; leave them out")
  if new and not (grows and space.kind in _NAMED):
    remedy = "; new_labels=True adds names" if space.kind in _NAMED else ""
    raise LabelsError(f"labels: {shown(new[0])} is not one of the {len(space.texts):,} classes{remedy}")
  return new


def _named(given: Labels, space: LabelSpace, keys: Sequence[str], new: list[str]) -> list[list[str]]:
  """Returns the keys of each text's labels; names that are no classes yet are their own keys.

  Raises:
    DataError: the form or the number of columns is another, or two classes have one text.
  """
  larger = space.extended(new) if new else space
  found = larger.encode(given)
  first: dict[str, int] = {}
  for label, text in enumerate(larger.texts):
    first.setdefault(text.strip(), label)
  key_of: dict[int, str] = {}
  for label in set(found.indices.tolist()):
    text = larger.texts[label]
    if first[text.strip()] != label:
      raise DataError(f"labels: several classes are called {shown(text)}; give `fit` a text for each")
    key_of[label] = keys[label] if label < len(keys) else text
  return [[key_of[label] for label in row] for row in found.tolil().rows]
