"""Doubts labels that people give: are they likelier for their own text than for another one?"""

from collections.abc import Sequence

import numpy as np

from xmc_jax.retrieval.hybrid import HybridRanker
from xmc_jax.retrieval.sources import Queries

_SAMPLE, _DEPTH = 100, 100  # texts that are ranked, and labels of each
_SHARE = 0.1  # of all labels, at most, so that chance finds few
FEWEST = 20  # labels of texts, for a doubt


def doubt(ranker: HybridRanker, queries: Queries, labels: Sequence[Sequence[int]], num_labels: int) -> str:
  """Returns a sentence if labels fit their texts no better than other texts; '' if they do, or are few.

  A label fits a text if it is among the best labels of a ranker that does not know the text yet. Counted are
  labels of up to 100 texts that the next of these texts does not have; a difference of two standard
  deviations of chance counts. Rows of a table that slipped are seen by it, or labels that were mixed up.

  Args:
    ranker: ranks labels.
    queries: n texts.
    labels: ids of each text's labels; those from `num_labels` on are new, and are left out.
    num_labels: L.
  """
  rows = np.random.default_rng(0).permutation(len(labels))[:_SAMPLE]
  depth = max(1, min(_DEPTH, int(_SHARE * num_labels)))
  found = ranker.rank(
    Queries(queries.vectors[rows], [queries.texts[row] for row in rows]), depth
  ).ids.tolist()
  own = other = total = 0
  for row, best, next_row, next_best in zip(rows, found, np.roll(rows, -1), found[1:] + found[:1]):
    for label in set(labels[row]) - set(labels[next_row]):
      if label < num_labels:
        own, other, total = own + (label in best), other + (label in next_best), total + 1
  if total < FEWEST or own - other > 2 * (own + other) ** 0.5:
    return ""
  return (
    f"these labels fit their texts no better than others: {own:,} of {total:,} are among the {depth} best "
    f"for their text, {other:,} for another one; if they are mixed up, --undo takes them back"
  )
