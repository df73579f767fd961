"""What may be asked of a model, in one way of a run and of what it has exported."""

from collections.abc import Callable, Sequence

import numpy as np

from xmc_jax.contract import UserError
from xmc_jax.refresh.search import Ranking


def check_texts(texts: Sequence[str]) -> None:
  """Raises UserError unless these are texts: a list, an array, a column of str."""
  if (
    isinstance(texts, str)
    or not hasattr(texts, "__len__")
    or not all(isinstance(text, str) for text in texts)
  ):
    raise UserError("texts must be a list of str, such as ['a window manager']")


def check_k(k: int, num_labels: int) -> None:
  """Raises UserError unless k labels per text can be had."""
  if not 1 <= k <= num_labels:
    raise UserError(f"k = {k}: there are {num_labels} labels; set 1 to {num_labels}")


def best_labels(
  texts: Sequence[str], k: int, labels: Sequence[str], rank: Callable[[Sequence[str]], Ranking]
) -> tuple[np.ndarray, np.ndarray, list[list[str]]]:
  """The k best labels of each text.

  Args:
    texts: n texts.
    k: labels per text.
    labels: the texts of all labels, by id.
    rank: of at least one text, its k best labels.

  Returns:
    ids `[n, k]` int32, scores `[n, k]` float32, best first, and the labels' texts, a list of k for each.
    Where fewer are ranked, -1 and -inf stand behind them, and a list is shorter.

  Raises:
    UserError: k is out of range, or `texts` is not a list of texts.
  """
  check_k(k, len(labels))
  check_texts(texts)
  if not len(texts):
    return np.zeros((0, k), np.int32), np.zeros((0, k), np.float32), []
  ranking = rank(texts)
  return ranking.ids, ranking.scores, [[labels[label] for label in row if label >= 0] for row in ranking.ids]
