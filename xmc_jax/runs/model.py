"""A trained run, ready to predict from Python."""

import functools
import pathlib
from collections.abc import Sequence

import numpy as np

from xmc_jax import config as configs
from xmc_jax import methods
from xmc_jax.data.tokens import Encoder
from xmc_jax.retrieval.hybrid import HybridRanker
from xmc_jax.runs import answers, ranking
from xmc_jax.runs import run as runs


class Model:
  """A trained dual encoder with its labels. Made of a `Run`, it opens what it needs when it is asked.

  Example:
    >>> model = xmc_jax.Model.load("runs/dexml-debian")
    >>> ids, scores, texts = model.predict(["a window manager for X11"], k=3)
  """

  def __init__(self, run: runs.Run, scores: str = ""):
    self._run, self._scores = run, scores
    methods.check_scores(scores or run.config.eval.scores, run.config, run.method)
    self._params, self._extra_state, self.step = run.trained()

  @classmethod
  def load(
    cls, workdir: str | pathlib.Path, *, scores: str = "", backend: str = "", warm: bool = True
  ) -> "Model":
    """Opens a run's folder, which is all that is needed.

    Args:
      workdir: the folder.
      scores: what to rank by: 'hybrid', all sources joined; 'fused', the method's own scores; 'encoder',
        'classifier', 'memory', ...: one source alone; '' is as the run was told.
      backend: what searches the labels: 'exact', 'scann' (of large sets, nearly all of the best, sooner) or
        'auto'; '' is as the run was told.
      warm: open what ranks, and answer a text of usual length, so that the first that is asked need not
        wait for it. What is missing in the folder is made and kept there, as the points' embeddings. Texts of
        other lengths, or many at once, are still compiled when they come first, and ScaNN's indexes are
        built after 50 texts. False opens what is needed when it is needed.

    Raises:
      UserError: no run there, or nothing trained yet, or no such scores or backend; or what ranks is damaged,
        or needs LightGBM, which is not installed.
    """
    model = cls(runs.reopen(pathlib.Path(workdir), backend=backend), scores)
    if warm:
      train = model._run.dataset.train
      usual = np.argsort(train.tokens.lengths, kind="stable")[len(train) // 2]
      model.predict([train.texts[int(usual)]], k=1)
    return model

  @property
  def labels(self) -> Sequence[str]:
    """The L label texts; a label's id is its position."""
    return self._run.dataset.labels.texts

  @property
  def _chosen(self) -> str:
    return self._scores or self._run.config.eval.scores

  @functools.cached_property
  def _sources(self) -> HybridRanker:
    opened = ranking.hybrid if self._chosen == "hybrid" else ranking.sources
    return opened(self._run, self._params, self._extra_state)

  @functools.cached_property
  def _rank(self) -> ranking.Rank:
    if self._chosen == "hybrid":
      return self._sources.rank
    if self._chosen in configs.SOURCES:
      return functools.partial(self._sources.rank_by, self._chosen)
    return ranking.ranker(self._run, self._params, self._extra_state, self._chosen)

  @functools.cached_property
  def _tokens(self) -> Encoder:
    return Encoder(self._run.dataset.tokenizer(), self._run.config.data.max_length)

  def embed(self, texts: Sequence[str]) -> np.ndarray:
    """`[n, D]` float32 embeddings of texts, as points.

    A dual encoder embeds labels alike. Of UniDEC's, the first `encoder.projection_dim` columns are the
    dual encoder's; the rest meets classifiers, which no text has.

    Raises:
      UserError: `texts` is not a list of texts.
    """
    answers.check_texts(texts)
    return self._run.embedder.queries(self._params, self._extra_state, self._tokens.table(texts))

  def check_k(self, k: int) -> None:
    """Raises UserError unless k labels per text can be had."""
    answers.check_k(k, len(self.labels))

  def predict(
    self, texts: Sequence[str], k: int = 5, explain: bool = False
  ) -> tuple[np.ndarray, np.ndarray, list[list[str]]] | tuple:
    """The k best labels of each text.

    Args:
      texts: n texts; an empty one is legal.
      k: labels per text, 1 to L.
      explain: also say why, as a fourth result.

    Returns:
      ids `[n, k]` int32, scores `[n, k]` float32, best first, and the labels' texts, a list of k for each.
      Scores are probabilities that a label is right where the run ranks by 'hybrid', else inner products,
      or what they are fused to. Where fewer are found, -1 and -inf stand behind them, and a list is shorter.
      With `explain`, also a list of a dict for each label of each text: 'sources', the sources that have it
      among their best ten, with its rank there; 'voters', training texts that voted for it, with weights.

    Raises:
      UserError: k is out of range, or `texts` is not a list of texts.
    """
    why = (lambda *found: answers.reasons(self._sources, *found)) if explain else None
    rank = lambda *asked: self._rank(*asked)  # opened when it is needed
    return answers.best_labels(texts, k, self.labels, self.embed, rank, why)

  def open(self, explain: bool = False) -> None:
    """Opens what ranks, which may write files into the run's folder; with `explain`, also what explains."""
    _ = self._rank
    if explain:
      _ = self._sources
