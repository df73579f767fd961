"""`XMCClassifier`: trains and predicts like an estimator of scikit-learn."""

import os
import pathlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

import ml_collections
import numpy as np
import scipy.sparse as sp
from sklearn.utils import ClassifierTags, Tags
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from xmc_jax import metrics
from xmc_jax.config.keys import LARGEST
from xmc_jax.data.label_sets import LabelSpace
from xmc_jax.data.label_values import ID, NAME, Labels, texts_of
from xmc_jax.errors import ConfigError
from xmc_jax.estimator import fitted, settings
from xmc_jax.estimator.learning import Learns
from xmc_jax.runs.best_labels import BEST_F1, LabelRequest, is_given

# Arguments that scikit-learn would otherwise take for metadata.
_TEXTS = MappingProxyType({"texts": UNUSED})
_TEXTS_AND_LABELS = MappingProxyType({"texts": UNUSED, "labels": UNUSED})
_DEPTH = 100  # labels that `predict` looks at first


def _has_probabilities(estimator: "XMCClassifier") -> bool:
  if estimator.scores == "hybrid":
    return True
  raise AttributeError(
    f"scores={estimator.scores!r} gives no probabilities; set scores='hybrid', or use top_k"
  )


class XMCClassifier(Learns):
  """Learns which labels belong to a text, of very many labels that are texts too.

  It trains and ranks as the command line does, with the settings of `experiments/METHOD.py`. docs/sklearn.md
  has examples.

  Args:
    method: 'auto', several methods combined; or one of 'dexml', 'dexa', 'ngame', 'prime', 'rae_xmc',
      'unidec', 'depsl', 'ova', 'dpr' or 'ance'.
    encoder: 'bag', 'gru', or a pretrained encoder: a folder, hub id or installed package.
    minutes: the time that 'auto' may take; None is 10, with a pretrained encoder or a GRU 180.
    num_epochs, batch_size, learning_rate: of a method's training, not of 'auto'; None is the method's own.
    max_length: tokens of a text that the encoder reads; None is the method's own.
    scores: what labels are ranked by, as `config.eval.scores`; only 'hybrid' gives probabilities, and 'auto'
      has no other.
    threshold: the least probability of a predicted label; None gives each text the set with the best
      expected F1.
    random_state: seed of the training, or without `workdir` a NumPy RandomState; None is 0.
    workdir: a folder for the run's files, from which an interrupted `fit` continues. None keeps them in a
      temporary folder, as long as the estimator lives.
    verbose: 0 prints nothing; 1 prints progress.
    new_labels: whether `learn` and `partial_fit` add names that are no classes yet, instead of refusing them.
    settings: other settings by dotted key, such as {'method.loss': 'softmax'}; docs/settings.md lists them.

  Attributes:
    classes_: `[L]` names, ids or texts of the labels; a label's column is its position.

  Example:
    >>> model = XMCClassifier().fit(["a window manager", "plays music"] * 20, [["desktop"], ["audio"]] * 20)
    >>> model.predict(["a music player"])
    [['audio']]
  """

  __metadata_request__fit = __metadata_request__partial_fit = _TEXTS_AND_LABELS
  __metadata_request__score = _TEXTS_AND_LABELS
  __metadata_request__predict = __metadata_request__predict_proba = _TEXTS
  __metadata_request__decision_function = _TEXTS

  def __init__(
    self,
    method: str = "auto",
    encoder: str = "bag",
    *,
    minutes: float | None = None,
    num_epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    max_length: int | None = None,
    scores: str = "hybrid",
    threshold: float | None = None,
    random_state: int | np.random.RandomState | None = None,
    workdir: str | pathlib.Path | None = None,
    verbose: int = 0,
    new_labels: bool = False,
    settings: Mapping[str, Any] | None = None,
  ):
    self.method = method
    self.encoder = encoder
    self.minutes = minutes
    self.num_epochs = num_epochs
    self.batch_size = batch_size
    self.learning_rate = learning_rate
    self.max_length = max_length
    self.scores = scores
    self.threshold = threshold
    self.random_state = random_state
    self.workdir = workdir
    self.verbose = verbose
    self.new_labels = new_labels
    self.settings = settings

  def fit(self, texts: Any, labels: Any, *, label_texts: Any = None) -> Self:
    """Trains on texts and their labels.

    Args:
      texts: n texts: a list, tuple, NumPy array, or pandas or Polars series of str.
      labels: their labels, in a form that `xmc_jax.data.write` takes: lists of names or ids, one name or id
        per text, a sparse matrix `[n, L]`, or an array `[n, L]` of 0 and 1.
      label_texts: the L label texts; needed if names or ids do not describe the labels. Labels without
        training texts can be predicted, too.

    Returns:
      The estimator.

    Raises:
      DataError, ConfigError, UserError: texts, labels or a parameter cannot be used; one line says which.
      KeyboardInterrupt: at Ctrl-C, when the state is saved.
      SystemExit: likewise at SIGTERM, with code 143, unless the program has its own handler.
    """
    texts = texts_of(texts, "texts")
    given = Labels(labels, len(texts))
    return self._train(texts, given, LabelSpace.of(given, label_texts))

  def predict(self, texts: Any) -> Any:
    """Returns the labels of each text, in the form in which they came to `fit`.

    For lists and matrices these are the labels whose probability is at least `threshold`, and always the
    best one; without a threshold, the set with the best expected F1. For one name or id per text it is the
    best one; so it is if `scores` are no probabilities.

    Args:
      texts: n texts.

    Returns:
      A list of lists of names or ids, best first; an array `[n]` of names or ids; or a matrix `[n, L]` of 0
      and 1, sparse if `fit` got a sparse one.
    """
    check_is_fitted(self)
    is_one = self.scores != "hybrid" or self._fitted.space.kind in (NAME, ID)
    limit = np.inf if is_one else self._threshold()
    depth = min(_DEPTH, len(self.classes_))
    ids, scores = self._ranked(texts, depth)
    while limit is not None and depth < len(self.classes_) and (scores[:, -1] >= limit).any():
      depth = min(4 * depth, len(self.classes_))
      ids, scores = self._ranked(texts, depth)
    chosen = is_given(scores, BEST_F1 if limit is None else limit)
    chosen[:, 0] = True
    chosen &= ids >= 0
    return self._fitted.space.decode(self._matrix(ids, np.ones_like(scores), chosen), ids[:, 0])

  @available_if(_has_probabilities)
  def predict_proba(self, texts: Any, k: int = 100) -> sp.csr_matrix:
    """Returns CSR `[n, L]` float32: the probability of each of the k best labels of a text.

    Probabilities are calibrated, each label by itself: a row does not add up to 1. Other labels have no
    entry. Needs scores='hybrid'.
    """
    found = self._of_best(texts, k)
    found.sort_indices()
    return found

  def decision_function(self, texts: Any, k: int = 100) -> sp.csr_matrix:
    """Returns CSR `[n, L]` float32: the scores of the k best labels of a text, by which they rank.

    With scores='hybrid' these are log-odds ln(p / (1 - p)) of the probabilities. An entry may be negative or
    0; a label without an entry scores less than all entries of its row.
    """
    found = self._of_best(texts, k)
    if self.scores == "hybrid":
      tiny = np.finfo(np.float32).tiny
      odds = np.clip(found.data.astype(np.float64), tiny, 1 - 2.0**-25)
      found.data = (np.log(odds) - np.log1p(-odds)).astype(np.float32)
    found.sort_indices()
    return found

  def top_k(self, texts: Any, k: int = 5) -> tuple[np.ndarray, np.ndarray, list[list[str]]]:
    """Ranks the k best labels of each text.

    Returns:
      Columns of labels `[n, k]` int32, scores `[n, k]` float32, best first, and the label texts, a list of k
      for each text. Scores are probabilities with scores='hybrid'. If fewer labels are found, columns are
      padded with -1, scores with -inf, and the list is shorter.
    """
    with self._opened() as model:
      dataset, found = model.ranked(texts_of(texts, "texts"), LabelRequest(k))
      self._fitted.follow(dataset)
      self.classes_ = self._fitted.space.classes
    return found

  def embed(self, texts: Any) -> np.ndarray:
    """Returns `[n, D]` float32 embeddings of texts; see `xmc_jax.Model.embed`."""
    with self._opened() as model:
      return model.embed(texts_of(texts, "texts"))

  def score(self, texts: Any, labels: Any) -> float:
    """Returns P@1: the share of texts whose best label is right.

    Args:
      texts: n texts.
      labels: their labels, in the form that `fit` got. Labels that it did not get count as true ones.
    """
    check_is_fitted(self)
    texts = texts_of(texts, "texts")
    truth = self._fitted.space.encode(Labels(labels, len(texts)), allow_unknown=True)
    return metrics.evaluate(self._ranked(texts, 1)[0], truth, ks=(1,))["P@1"]

  def __sklearn_tags__(self) -> Tags:
    tags = super().__sklearn_tags__()
    tags.input_tags.string = tags.input_tags.one_d_array = True
    tags.input_tags.two_d_array = False
    tags.target_tags.required = tags.target_tags.multi_output = True
    tags.target_tags.one_d_labels = tags.target_tags.two_d_labels = True
    # It is no 'classifier' by type: scikit-learn refuses lists of labels as the target of one.
    tags.classifier_tags = ClassifierTags(multi_label=True)
    return tags

  def _train(self, texts: list[str], given: Labels, space: LabelSpace) -> Self:
    truth = space.encode(given)
    classes = space.classes  # before the training, which may take days
    config = self._config()
    workdir = None if self.workdir is None else pathlib.Path(self.workdir).expanduser().resolve()
    with self._printing(), settings.named_by_parameters():
      self._fitted = fitted.train(config, texts, space, truth, workdir)
    self.classes_ = classes
    return self

  def _config(self) -> ml_collections.ConfigDict:
    self._threshold()
    if not (self.workdir is None or isinstance(self.workdir, str | os.PathLike)):
      raise ConfigError(f"workdir = {self.workdir!r:.60} is not a path; for instance workdir='runs/mine'")
    given = {name: getattr(self, name) for name in settings.KEYS if name not in ("method", "encoder")}
    if isinstance(self.random_state, np.random.RandomState):
      if self.workdir is not None:
        raise ConfigError(
          "random_state: a RandomState gives each fit another seed, and a fit in a workdir goes on with its "
          "own; give a number, such as random_state=0, or leave workdir out"
        )
      given["random_state"] = int(self.random_state.randint(LARGEST))
    return settings.make(self.method, self.encoder, given, self.settings)

  def _threshold(self) -> float | None:
    """Returns the least probability of a predicted label, or None."""
    if self.threshold is None:
      return None
    is_number = isinstance(self.threshold, int | float | np.number) and not isinstance(self.threshold, bool)
    if not is_number or not 0 <= self.threshold <= 1:
      raise ConfigError(f"threshold = {self.threshold!r:.60} is not a probability; set 0 to 1, or None")
    return float(self.threshold)

  def _ranked(self, texts: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Ranks k labels, or all if that is more: labels that were learnt may have been forgotten elsewhere."""
    with self._opened():
      k = min(k, len(self.classes_))
    ids, scores, _ = self.top_k(texts, k)
    return ids, scores

  def _of_best(self, texts: Any, k: int) -> sp.csr_matrix:
    ids, scores = self._ranked(texts, k)
    return self._matrix(ids, scores, ids >= 0)

  def _matrix(self, ids: np.ndarray, values: np.ndarray, kept: np.ndarray) -> sp.csr_matrix:
    """Returns CSR `[n, L]` with some of the values `[n, k]` of labels `[n, k]`, in their order."""
    indptr = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    return sp.csr_matrix((values[kept], ids[kept], indptr), (len(ids), len(self.classes_)))
