"""Reasons for a ranked label: the sources' lists and the voters, looked through one by one."""

import made_corpora
import numpy as np
import pytest

from xmc_jax.retrieval.explanations import Reason, as_dict, explain, line
from xmc_jax.retrieval.memory import Neighbors
from xmc_jax.retrieval.sources import SOURCES, Found, Retriever


def test_reasons_are_true():
  retriever = Retriever(made_corpora.corpus())
  (block,) = retriever.blocks(made_corpora.queries(7), 20, 64)
  found = {name: source(block) for name, source in SOURCES.items()}
  ids = np.tile(np.arange(40, dtype=np.int32), (7, 1))
  truth = retriever.corpus.truth.toarray() > 0
  reasons = explain(found, ids, retriever.corpus.truth)
  seen = 0
  for row, label in np.ndindex(ids.shape):
    reason = reasons[row][label]
    assert list(reason.sources.values()) == sorted(reason.sources.values())  # best first
    weights = {}
    for one in found.values():
      for point, weight in zip(*(array[row].tolist() for array in one.voters)) if one.voters else ():
        if point >= 0 and weight > 0 and truth[point, label]:
          weights[point] = max(weight, weights.get(point, 0))
    assert [weight for _, weight in reason.voters] == sorted(weights.values(), reverse=True)
    assert all(weights[point] == weight for point, weight in reason.voters)
    shown = as_dict(reason, [str(point) for point in range(len(truth))])
    assert shown["voters"] == [{"text": str(p), "weight": round(w, 6)} for p, w in reason.voters[:3]]
    assert (f"{len(weights)} similar text" in shown["words"]) == bool(weights)
    seen += len(reason.voters)
  assert seen > 100


def test_equal_voters_by_row_and_those_against_not_at_all():
  truth = made_corpora.pairs(np.random.default_rng(0), (6, 1), 1)
  voters = Neighbors(np.array([[5, 2, 1, 4, 0, -1]]), np.array([[0.5, 0.5, 0.5, 0.7, -1, 0]], np.float32))
  found = {"memory": Found(np.zeros((1, 1), np.int32), None, voters)}
  ((reason,),) = explain(found, np.zeros((1, 1), np.int32), truth)
  assert [point for point, _ in reason.voters] == [4, 1, 2, 5]


@pytest.mark.parametrize(
  "sources, voters, expected",
  [
    (
      {"memory": 1, "encoder": 3, "lexical_labels": 9},
      [(1, 0.5), (0, 0.4)],
      "words of its name occur in the text; the model learnt that it fits such texts; "
      "2 similar texts have it: «short»",
    ),
    ({"classifier": 3, "encoder": 1}, [], "the model learnt that it fits such texts"),
    ({"encoder": 10}, [(0, 0.1)], f"1 similar text has it: «{'long ' * 12}…»"),
    ({"encoder": 4}, [], "no single reason stands out"),
    ({}, [], "no single reason stands out"),
  ],
)
def test_reasons_in_words(sources, voters, expected):
  assert line(as_dict(Reason(sources, voters), ["long " * 20, "short"])) == expected


def test_texts_in_a_reason_obey_nobody():
  found = line(as_dict(Reason({}, [(0, 1.0)]), ["a\nb\x1b[2J\u202e"]))
  assert "\n" not in found and "\x1b" not in found and "\u202e" not in found
