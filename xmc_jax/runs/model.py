"""Predicts labels from Python with a trained run."""

import functools
import itertools
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from xmc_jax import config as configs
from xmc_jax.data import Dataset
from xmc_jax.errors import UserError
from xmc_jax.retrieval.hybrid import HybridRanker
from xmc_jax.retrieval.sources import Queries
from xmc_jax.runs import evaluate, label_functions, ranking
from xmc_jax.runs import run as runs
from xmc_jax.runs.best_labels import (
  BEST_F1,
  LabelRequest,
  Threshold,
  best_labels,
  check_k,
  check_texts,
  reasons,
)
from xmc_jax.runs.known_labels import KnowsLabels
from xmc_jax.runs.learning import Learner, NewLabels
from xmc_jax.runs.trained import Trained


class Model(KnowsLabels):
  """Predicts with a trained dual encoder and its labels; opens each part of the run at its first use.

  Args:
    trained: a trained run; `load` opens one from its folder.
    scores: as in `load`.

  Example:
    >>> model = xmc_jax.Model.load("runs/dexml-debian")
    >>> ids, scores, texts = model.predict(["a window manager for X11"], k=3)
  """

  def __init__(self, trained: Trained, scores: str = ""):
    self._trained, self._run, self.step = trained, trained.run, trained.step
    self._chosen = scores or trained.run.config.eval.scores
    self._takes_filters = self._chosen in ("hybrid", *configs.SOURCES)
    self._few_shapes = False
    self._run.check_scores(self._chosen)

  @classmethod
  def load(
    cls,
    workdir: str | pathlib.Path,
    *,
    scores: str = "",
    backend: str = "",
    warm: bool = True,
    add_labels: str | pathlib.Path | Mapping[str, str] = "",
  ) -> "Model":
    """Opens a run from its folder; nothing else is needed.

    Args:
      workdir: the folder.
      scores: what to rank by: 'hybrid', all sources joined; 'fused', the method's own scores; 'encoder',
        'classifier', 'memory', ...: one source alone; '' is the run's own `config.eval.scores`.
      backend: what searches the labels: 'exact', 'scann' (on large sets faster, finds nearly all of the best)
        or 'auto'; '' is the run's own `config.eval.backend`.
      warm: open the rankers now and predict for a text of usual length, so that the first query is fast.
        Files that are missing in the folder, such as the points' embeddings, are computed and stored there.
        Texts of other lengths, or many at once, are still compiled at their first use, and ScaNN's indexes
        are built after 50 texts. False opens each part at its first use.
      add_labels: more labels to rank by their texts: a file, a text a line or a table with key and name, or
        `{key: text}`. Those that the run has already are left out.

    Raises:
      UserError: there is no run, nothing is trained yet, or the scores or the backend are unknown; or a
        ranker's file is damaged, or needs LightGBM, which is not installed.
    """
    trained = runs.reopen(pathlib.Path(workdir), backend=backend).trained()
    model = cls(label_functions.with_added(trained, add_labels) if add_labels else trained, scores)
    if warm:
      train = model._run.dataset.train
      usual = np.argsort(train.tokens.lengths, kind="stable")[len(train) // 2]
      model.predict([train.texts[int(usual)]], k=1)
    return model

  @property
  def gives_probabilities(self) -> bool:
    """Returns whether scores are probabilities that a label is right; see `predict`."""
    return ranking.gives_probabilities(self._chosen)

  @functools.cached_property
  def _calibration(self) -> dict[str, Any]:
    suffix = "" if self._chosen == self._run.config.eval.scores else f"_{self._chosen}"
    return evaluate.stored_report(self._run.workdir, suffix, self.step).get("calibration", {})

  @property
  def calibration_error(self) -> float | None:
    """Returns the expected calibration error of first labels on the test rows; None if it is not known."""
    return self._calibration.get("ece_first")

  @property
  def is_calibrated(self) -> bool | None:
    """Returns whether that error is small, or explained by chance; None if it is not known."""
    return not self._calibration["note"] if self._calibration else None

  @property
  def cut(self) -> str:
    """Returns how many of the texts so far are longer than what the encoder reads, in words; '' if none."""
    most = max((one.tokens for one in self._trained.members.values()), key=lambda tokens: tokens.num_cut)
    how = f"at {most.max_length} tokens for the encoder, by the run's data.max_length"
    return f"{most.num_cut:,} texts are cut {how}" if most.num_cut else ""

  @functools.cached_property
  def _learner(self) -> Learner:
    return Learner(self._trained, self.embed, ranking.hybrid if self._chosen == "hybrid" else ranking.sources)

  @property
  def dataset(self) -> Dataset:
    return self._learner.now().dataset if self._takes_filters else self._run.dataset

  @functools.cached_property
  def _own_rank(self) -> ranking.Rank:
    return self._trained.ranker(self._chosen)

  def embed(self, texts: Sequence[str]) -> np.ndarray:
    """Returns `[n, D]` float32 embeddings of texts, as queries.

    A dual encoder embeds labels in the same way. In UniDEC, only the first `encoder.projection_dim` columns
    are the dual encoder's; the others are compared with classifiers, which a text does not have. Of combined
    runs, the embeddings by each are side by side.

    Raises:
      UserError: `texts` is not a list of texts.
    """
    check_texts(texts)
    return self._trained.embed(texts, few_shapes=self._few_shapes)

  def check_k(self, k: int, threshold: Threshold = -math.inf) -> int:
    """Returns k, which `predict` takes; with a threshold, at most the number of labels.

    Raises:
      UserError: k or the threshold is out of range.
    """
    if threshold == BEST_F1:
      if not self.gives_probabilities:
        raise UserError(f"--labels={BEST_F1} needs probabilities; leave --scores={self._chosen} out")
    elif self.gives_probabilities and math.isfinite(threshold) and not 0 <= threshold <= 1:
      raise UserError(f"--threshold={threshold:g}: scores are probabilities; set 0 to 1")
    return check_k(k, len(self.labels), threshold)

  def predict(
    self,
    texts: Sequence[str],
    k: int = 5,
    explain: bool = False,
    num_explained: int = 0,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    language: str = "",
  ) -> tuple[np.ndarray, np.ndarray, list[list[str]]] | tuple:
    """Ranks the k best labels of each text.

    Args:
      texts: n texts; an empty text is allowed.
      k: labels per text, 1 to L.
      explain: also return the reasons, as a fourth result.
      num_explained: labels per text that get reasons, the best ones; 0 is all.
      include, exclude: keys of the labels that alone, or that never, are answers; () is no limit. Where the
        data have a vocabulary, `below:KEY` is a label with all narrower ones, `scheme:URI` a scheme's labels.
      language: one of `languages` for the labels' names; '' is the run's own.

    Returns:
      ids `[n, k]` int32, scores `[n, k]` float32, best first, and the labels' texts, a list of k for each.
      Scores are probabilities that a label is right if the run ranks by 'hybrid', else inner products, or
      what a tree or a memory of keys makes of them. If fewer labels are found, ids are padded with -1,
      scores with -inf, and the list is shorter. With `explain`, also a dict for each label of each text:
      'words', the reasons in a sentence; 'sources', those that have the label among their best ten, with its
      rank there; 'voters', at most three training texts that voted for it, with weights.

    Raises:
      UserError: k is out of range, `texts` is not a list of texts, a key is no label's, or no label has a
        name in the language.
    """
    request = LabelRequest(
      k, explain=explain, include=tuple(include), exclude=tuple(exclude), language=language
    )
    return self.ranked(texts, request, num_explained)[1]

  def ranked(
    self, texts: Sequence[str], request: LabelRequest, num_explained: int = 0
  ) -> tuple[Dataset, tuple]:
    """Returns the data whose labels the ids mean, whoever learns meanwhile; and what `predict` returns.

    The request's threshold does not count.
    """
    k, _, explain, include, exclude, language = request
    self.where(include, exclude)  # refuses keys before anything is opened
    self.check_language(language)
    check_k(k, len(self.labels))
    check_texts(texts)
    dataset, rank, sources = self.open(explain) if len(texts) else (self.dataset, None, None)

    def why(queries: Queries, ids: np.ndarray) -> list[list[dict]]:
      # Padding keeps the depth of the search, so that the number of reasons compiles and tunes nothing.
      is_explained = np.arange(ids.shape[1]) < (num_explained or k)
      return reasons(cast(HybridRanker, sources), queries, np.where(is_explained, ids, -1))

    where, whys = self._where(dataset, include, exclude), why if explain else None
    name: Callable[[int], str] = dataset.label_names.__getitem__
    if language:
      name = functools.partial(dataset.label_name, language=language)
    return dataset, best_labels(texts, k, name, self.embed, cast(ranking.Rank, rank), whys, where)

  def learn(
    self, texts: Sequence[str], labels: Sequence[Iterable[str]], new_labels: NewLabels = False
  ) -> np.ndarray:
    """Remembers labelled texts from the next prediction on, in the run's folder, too; trains nothing.

    Their labels are votes in the hybrid ranking. A text that is known already has these labels in place of
    its own; one that the training data have several times over is one more of these. With no labels, a text
    is forgotten.

    Args:
      texts: n texts.
      labels: the labels of each, by key, name or notation.
      new_labels: add unknown labels, under the name given; or `{key: text}` of those to add. They get the
        next ids, and are found by their texts and by the texts that have them.

    Returns:
      `[n]` int64 numbers of the texts, for `unlearn`.

    Raises:
      UserError: a label is unknown, the scores are a method's own, another process learns for this run, or
        the disk is full; then nothing was learnt.
    """
    return self._to_learn().learn(texts, labels, new_labels)

  def undo(self) -> int:
    """Forgets for good the texts of the last `learn`; returns how many.

    Raises:
      UserError: nothing was learnt; or as `learn`.
    """
    return self._to_learn().undo()

  def unlearn(self, ids: Iterable[int]) -> None:
    """Forgets for good the texts that `learn` returned these numbers for, with all that was learnt of them.

    A training text that they corrected has its own labels again.

    Raises:
      UserError: a number is unknown; or as `learn`.
    """
    self._to_learn().unlearn(ids)

  def _to_learn(self) -> Learner:
    if not self._takes_filters:
      raise UserError(f"scores of the method alone ({self._chosen}) remember nothing; give --scores=hybrid")
    return self._learner

  def warm(self, num_texts: int, depths: Sequence[int] = (10,)) -> None:
    """Opens all that answers need, and compiles for every shape, so that no later answer waits for XLA.

    From then on texts are embedded 1 or 8 at a time (on accelerators also 64), padded to few lengths.

    Args:
      num_texts: most texts in a later call.
      depths: values of k in later calls.
    """
    self._few_shapes = True
    self.open(explain=True)
    _ = self.parts, self.languages
    for one in self._trained.members.values():
      one.run.embedder.compile_few_shapes(one.params, one.extra_state)
    texts = list(itertools.islice(itertools.cycle(self._run.dataset.train.texts), num_texts))
    powers = (1 << power for power in range(num_texts.bit_length()))
    for k, size in itertools.product(depths, sorted({*powers, num_texts})):
      self.predict(texts[:size], min(k, len(self.labels)), explain=True, num_explained=1)

  def open(self, explain: bool = False) -> tuple[Dataset, ranking.Rank, HybridRanker | None]:
    """Opens the rankers, which may write files into the run's folder.

    Returns:
      The labels, what ranks them, and all sources if they are needed, as with `explain`: of one moment.
    """
    now = self._learner.now(opened=True) if explain or self._takes_filters else None
    dataset, rank = self._run.dataset, None if self._takes_filters else self._own_rank
    sources = now.ranker if now else None
    if now and sources and not rank:
      dataset, rank = now.dataset, sources.rank
      if self._chosen != "hybrid":
        rank = functools.partial(sources.rank_by, self._chosen)
    self._trained.release()
    return dataset, cast(ranking.Rank, rank), sources
