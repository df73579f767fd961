"""Explains why a label was ranked: which sources rank it high, and which training queries voted for it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from xmc_jax import sanitize
from xmc_jax.retrieval.sources import Found

_REASON_DEPTH = 10  # a source is given as a reason for a label that it ranks among this many
_VOTERS = 3  # training queries that are shown for a label
_LONGEST = 60  # characters of a text in a line
# What it means if a source ranks a label so high, or higher; the other sources rank by training texts.
_IN_WORDS = {
  "lexical_labels": (_REASON_DEPTH, "words of its name occur in the text"),
  "encoder": (3, "the model learnt that it fits such texts"),
  "classifier": (3, "the model learnt that it fits such texts"),
}


class Reason(NamedTuple):
  """Holds the reasons why a label was ranked."""

  sources: dict[str, int]  # that rank the label among their best ten, with its rank there from 1, best first
  # All training queries near the query that have the label: row in the memory, and the largest weight of its
  # vote in any source; largest first.
  voters: list[tuple[int, float]]


def explain(found: Mapping[str, Found], ids: np.ndarray, truth: sp.csr_matrix) -> list[list[Reason]]:
  """Returns a reason for each label of each query, `[n, k]` padded with -1; `truth` is that of the memory."""
  return [
    [_reason(found, row, label, truth) for label in labels if label >= 0]
    for row, labels in enumerate(ids.tolist())
  ]


def line(why: Mapping[str, Any]) -> str:
  """Returns what `as_dict` made as one line, with the first of its texts: `1 similar text has it: «mpd»`."""
  if not why["voters"]:
    return why["words"]
  text = sanitize.line(why["voters"][0]["text"])
  shown = text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
  return f"{why['words']}: «{shown}»"


def as_dict(reason: Reason, point_texts: Sequence[str]) -> dict[str, Any]:
  """Returns a reason for JSON: 'words'; 'sources' with ranks; first 'voters' with 'text' and 'weight'."""
  ranks: dict[str, int] = {}
  for name, rank in reason.sources.items():  # best first
    ranks.setdefault(name.partition(" of ")[0], rank)
  parts = [words for name, (lowest, words) in _IN_WORDS.items() if ranks.get(name, np.inf) <= lowest]
  if number := len(reason.voters):
    parts.append("1 similar text has it" if number == 1 else f"{number} similar texts have it")
  voters = [
    {"text": point_texts[point], "weight": round(weight, 6)} for point, weight in reason.voters[:_VOTERS]
  ]
  words = "; ".join(dict.fromkeys(parts)) or "no single reason stands out"
  return {"words": words, "sources": reason.sources, "voters": voters}


def _reason(found: Mapping[str, Found], row: int, label: int, truth: sp.csr_matrix) -> Reason:
  ranks: dict[str, int] = {}
  weights: dict[int, float] = {}
  for name, one in found.items():
    places = np.flatnonzero(one.ids[row, :_REASON_DEPTH] == label)
    if len(places):
      ranks[name] = int(places[0]) + 1
    voters = zip(*(array[row].tolist() for array in one.voters)) if one.voters else ()
    for point, weight in voters:
      if point < 0 or weight <= 0:
        continue
      if label in truth.indices[truth.indptr[point] : truth.indptr[point + 1]]:
        weights[point] = max(weight, weights.get(point, 0.0))
  best = sorted(weights.items(), key=lambda pair: (-pair[1], pair[0]))
  return Reason(dict(sorted(ranks.items(), key=lambda pair: pair[1])), best)
