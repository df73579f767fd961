"""Batches of (point, label) pairs in which no text occurs twice; plain NumPy, for any environment."""

import collections
from collections.abc import Mapping, Sequence

import numpy as np

_FEWEST = 2  # a pair alone has no negative


def pairs_of_epoch(
  truth, texts: Mapping[str, Sequence[str]], size: int, seed: int | Sequence[int], most: int = 0
) -> list[np.ndarray]:
  """Shuffles all pairs of points and true labels, and puts them into batches `[n, 2]`, n <= size.

  Args:
    truth: CSR `[N, L]`, its entries are the pairs.
    texts: texts of the points, under 'train', and of the 'labels'.
    size: the most pairs in a batch.
    seed: of the order.
    most: the number of pairs to use; 0 is all.
  """
  pairs = np.stack(truth.nonzero(), axis=1)
  pairs = pairs[np.random.default_rng(seed).permutation(len(pairs))[: most or None]]
  numbers: dict[str, int] = {}

  def number(text: str) -> int:
    return numbers.setdefault(text, len(numbers))

  names = [(number(texts["train"][point]), number(texts["labels"][label])) for point, label in pairs.tolist()]
  size = min(size, *(len(set(side)) for side in zip(*names))) if names else size  # no batch can be larger
  return [pairs[chosen] for chosen in without_repeats(names, size)]


def without_repeats(names: Sequence[tuple[int, int]], size: int) -> list[list[int]]:
  """Puts pairs into batches in their order, each into the first batch that has neither of its texts.

  Returns:
    Positions in `names`, pairs of numbers of texts: `size` per batch, fewer in the last batches. Batches less
    than half full are left out: the remaining labels are few and frequent, so they give each other too few
    negatives.
  """
  waiting, made = collections.deque(range(len(names))), []
  while waiting:
    chosen, seen, put_off = [], set(), []
    while waiting and len(chosen) < size:
      place = waiting.popleft()
      if seen.isdisjoint(names[place]):
        chosen.append(place)
        seen.update(names[place])
      else:
        put_off.append(place)
    waiting.extendleft(reversed(put_off))
    if len(chosen) < max(size / 2, _FEWEST):
      break
    made.append(chosen)
  return made
