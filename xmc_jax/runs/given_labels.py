"""Checks texts and labels that people give, and doubts labels that fit no better than others."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from xmc_jax.data.arrays import well_formed
from xmc_jax.errors import UserError
from xmc_jax.retrieval.hybrid import HybridRanker
from xmc_jax.retrieval.sources import Queries
from xmc_jax.runs.best_labels import check_texts

_SAMPLE, _DEPTH = 100, 100  # texts that are ranked, and labels of each
_SHARE = 0.1  # of all labels, at most, so that chance finds few
FEWEST = 20  # labels of texts, for a doubt


def doubt(ranker: HybridRanker, queries: Queries, labels: Sequence[Sequence[int]], num_labels: int) -> str:
  """Returns a sentence if labels fit their texts no better than other texts; '' if they do, or are few.

  A label fits a text if it is among the best labels of a ranker that does not know the text. Counted are
  labels of up to 100 texts that the next of these texts does not have; a difference of two standard
  deviations of chance counts. Rows of a table that slipped are seen by it, or labels that were mixed up.

  Args:
    ranker: ranks labels.
    queries: n texts.
    labels: ids of each text's labels; those from `num_labels` on are new, and are left out.
    num_labels: L.
  """
  if len(labels) < FEWEST:
    return ""
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
    f"for their text, {other:,} for another one; if they are mixed up, undo takes them back"
  )


def checked(texts: Sequence[str], labels: Sequence[Iterable[str]]) -> list[list[str]]:
  """Returns the labels of each text as lists; refuses what is none."""
  check_texts(texts)
  if len(texts) != len(labels) or any(
    isinstance(of_text, str) or not isinstance(of_text, Iterable) for of_text in labels
  ):
    raise UserError(f"labels: expected a list of labels for each of the {len(texts):,} texts")
  named = [list(of_text) for of_text in labels]
  if wrong := [label for of_text in named for label in of_text if not isinstance(label, str)]:
    raise UserError(f"labels: expected keys or names, found {wrong[0]!r:.80}")
  return [well_formed(of_text) for of_text in named]


def plain(texts: Mapping[str, str]) -> dict[str, str]:
  """Returns the texts of new labels by key, as they are stored; refuses what is none."""
  if wrong := [one for pair in texts.items() for one in pair if not (isinstance(one, str) and one.strip())]:
    raise UserError(f"new_labels: expected keys and texts, found {wrong[0]!r:.80}")
  keys, values = (well_formed(list(part)) for part in (texts, texts.values()))
  return {" ".join(key.split()): " ".join(text.split()) for key, text in zip(keys, values)}
