"""Chooses how many of a text's best labels to give, for the best F1 that can be expected."""

import numpy as np
import numpy.typing as npt

_BLOCK = 256  # texts computed at once


def best_f1_sizes(probabilities: npt.ArrayLike) -> np.ndarray:
  """Returns the sizes of the label sets with the largest expected F1.

  F1 of a set = 2 · hits / (size + true labels). If labels are right independently of each other, the best set
  of a size has the most probable labels (Lewis, 1995), and the expectation for size s is
  Σ_i Σ_j P(i of the first s are right) · P(j of the others are right) · 2 i / (s + i + j).

  Args:
    probabilities: `[n, k]` of the k best labels of n texts, the largest first; labels beyond them count as
      wrong.

  Returns:
    `[n]` int64, 1 to k.

  Example:
    >>> best_f1_sizes([[0.9, 0.8, 0.1], [0.4, 0.1, 0.0]])
    array([2, 1])
  """
  values = np.clip(np.asarray(probabilities, np.float64), 0, 1)
  blocks = [_expected_f1(values[start : start + _BLOCK]) for start in range(0, len(values), _BLOCK)]
  return 1 + np.concatenate([*blocks, np.zeros((0, values.shape[1]))]).argmax(axis=1)


def _expected_f1(values: np.ndarray) -> np.ndarray:
  """Returns the expected F1 of the sets of the 1, …, k first of `[n, k]` labels: `[n, k]`."""
  num_texts, k = values.shape
  others = _num_right(values[:, ::-1])  # of the last labels
  first = _num_right(values)
  right = np.arange(k + 1)
  expected = np.empty((num_texts, k))
  for size in range(1, k + 1):
    hits, missed = right[: size + 1, None], right[None, : k - size + 1]
    f1 = 2 * hits / (size + hits + missed)
    chances = first[size][:, : size + 1] @ f1
    expected[:, size - 1] = (chances * others[k - size][:, : k - size + 1]).sum(axis=1)
  return expected


def _num_right(values: np.ndarray) -> np.ndarray:
  """Returns P(i of the first s labels are right), at `[s, n, i]` `[k + 1, n, k + 1]`, of `[n, k]`."""
  num_texts, k = values.shape
  chances = np.zeros((k + 1, num_texts, k + 1))
  chances[0, :, 0] = 1
  for size in range(k):
    p = values[:, size, None]
    chances[size + 1] = chances[size] * (1 - p)
    chances[size + 1, :, 1:] += chances[size, :, :-1] * p
  return chances
