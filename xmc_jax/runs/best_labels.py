"""Ranks the best labels of texts for `Model.predict` and `Exported.predict`: checks, names, reasons."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp

from xmc_jax import metrics
from xmc_jax.errors import UserError
from xmc_jax.retrieval.explanations import as_dict
from xmc_jax.retrieval.hybrid import HybridRanker
from xmc_jax.retrieval.search import Ranking
from xmc_jax.retrieval.sources import Queries

if TYPE_CHECKING:
  from xmc_jax.runs.model import Model

BEST_F1: Literal["f1"] = "f1"  # as a threshold: the set of labels with the best expected F1
Threshold = float | Literal["f1"]


class LabelRequest(NamedTuple):
  """Says which labels each text gets.

  Attributes:
    k: at most so many; fewer if fewer are found.
    threshold: the least score of a label, or BEST_F1.
    explain: whether each label gets the reasons that `Model.predict` returns.
    include, exclude: keys of labels, as in `Model.predict`.
    language: of the labels' names; '' is the run's own.
  """

  k: int
  threshold: Threshold = -math.inf
  explain: bool = False
  include: tuple[str, ...] = ()
  exclude: tuple[str, ...] = ()
  language: str = ""


def check_texts(texts: Sequence[str]) -> None:
  """Raises UserError unless `texts` is a sequence of str, such as a list, an array or a column."""
  if (
    isinstance(texts, str)
    or not hasattr(texts, "__len__")
    or not all(isinstance(text, str) for text in texts)
  ):
    raise UserError("texts must be a list of str, such as ['a window manager']")


def check_k(k: int, num_labels: int, threshold: Threshold = -math.inf) -> int:
  """Returns k; with a threshold, which leaves labels out in any case, at most the number of labels.

  Raises:
    UserError: it is not from 1 to the number of labels.
  """
  k = min(k, num_labels) if threshold != -math.inf else k
  if not 1 <= k <= num_labels:
    raise UserError(f"k = {k}: there are {num_labels} labels; set 1 to {num_labels}")
  return k


def is_given(scores: np.ndarray, threshold: Threshold) -> np.ndarray:
  """Returns `[n, k]` bool, whether labels of these scores `[n, k]`, best first, are among those to give.

  They are if their score is at least `threshold`, or with BEST_F1 in the set of the best expected F1.
  """
  if threshold == BEST_F1:
    return np.arange(scores.shape[1]) < metrics.best_f1_sizes(scores)[:, None]
  return scores >= threshold


def answers(model: "Model", texts: Sequence[str], request: LabelRequest) -> tuple:
  """Returns what `Model.ranked` does, in one tuple; labels that the request leaves out have the id -1."""
  dataset, (ids, scores, *rest) = model.ranked(texts, request)
  return dataset, np.where(is_given(scores, request.threshold), ids, -1), scores, *rest


def best_labels(
  texts: Sequence[str],
  k: int,
  name: Callable[[int], str],
  embed: Callable[[Sequence[str]], np.ndarray],
  rank: Callable[[Queries, int], Ranking],
  why: Callable[[Queries, np.ndarray], list[list[dict]]] | None = None,
  where: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, list[list[str]]] | tuple:
  """Ranks the k best labels of each text; the caller has checked the texts and k.

  Args:
    texts: n texts.
    k: labels per text.
    name: returns what is shown of a label.
    embed: `texts -> [n, D]`; not called without texts.
    rank: `(queries, k) -> Ranking`; not called without texts.
    why: `(queries, ids [n, k]) -> a dict for each label of each text`, the reasons; None leaves them out.
    where: `[L]` bool, True = a label that may be an answer; None is all.

  Returns:
    ids `[n, k]` int32, scores `[n, k]` float32, best first, and the labels' names, a list of k for each.
    If fewer labels are ranked, ids are padded with -1, scores with -inf, and the list is shorter. With
    `why`, its result is the fourth element.
  """
  queries = Queries(embed(texts) if len(texts) else np.zeros((0, 0), np.float32), texts, where)
  none = Ranking(np.zeros((0, k), np.int32), np.zeros((0, k), np.float32))
  ranking = rank(queries, k) if len(texts) else none
  names = [[name(label) for label in row if label >= 0] for row in ranking.ids.tolist()]
  ranked = ranking.ids, ranking.scores, names
  if why is None:
    return ranked
  return *ranked, why(queries, ranking.ids) if len(texts) else []


def reasons(
  ranker: HybridRanker, queries: Queries, ids: np.ndarray, exclude: sp.csr_matrix | None = None
) -> list[list[dict]]:
  """Explains why labels `[n, k]` were ranked: a dict for each label of each text; see `Model.predict`."""
  explained = ranker.explain(queries, ids, exclude)
  return [[as_dict(reason, ranker.point_texts) for reason in of_text] for of_text in explained]
