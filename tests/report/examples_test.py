"""Which points are shown, by hand, and how their labels are marked."""

import types

import numpy as np
import scipy.sparse as sp

from xmc_jax.metrics.hits import as_truth, find_hits
from xmc_jax.report import examples
from xmc_jax.retrieval.search import Ranking

TRUTH = sp.csr_matrix(
  np.array(
    [
      [1, 1, 0, 0, 0, 0],  # both first
      [1, 0, 0, 0, 0, 0],  # second
      [0, 0, 0, 0, 0, 1],  # not found
      [0, 0, 0, 0, 0, 0],  # nothing to find
      [0, 0, 1, 1, 0, 0],  # one first
      [0, 1, 0, 0, 0, 0],  # third
      [0, 1, 0, 0, 0, 0],  # nothing ranked
    ],
    np.float32,
  )
)
IDS = np.array([[1, 0, 2], [1, 0, 2], [0, 1, 2], [3, 4, 5], [2, 0, 1], [0, 2, 1], [-1, -1, -1]], np.int32)
SCORES = np.where(IDS >= 0, np.array([3.0, 2.0, 0.5]), -np.inf).astype(np.float32)
RANKING = Ranking(IDS, SCORES)
HITS = find_hits(IDS, as_truth(TRUTH))
OUTCOME = examples.outcome(RANKING, HITS, np.diff(TRUTH.indptr))


class _ByNumber:
  """Labels are as near as their numbers."""

  def nearness(self, one, other):
    return -np.abs(one - other).astype(float)


def test_outcomes():
  assert OUTCOME.best.tolist() == [0, 1, 3, 3, 0, 2, 3]
  assert OUTCOME.all_first.tolist() == [True, False, False, False, False, False, False]
  np.testing.assert_allclose(OUTCOME.lead, [0, 1, 2.5, 2.5, 0, 2.5, 0])


def test_near_pairs_are_of_wrong_first_labels_alone():
  rows, first, true = examples.near_pairs(RANKING, OUTCOME, TRUTH, 0)
  assert sorted(zip(rows.tolist(), first.tolist(), true.tolist())) == [(1, 1, 0), (2, 0, 5), (5, 0, 1)]


def test_each_point_is_shown_once_in_its_kind():
  near = examples.near_pairs(RANKING, OUTCOME, TRUTH, 0)
  found = {
    choice.title: choice.rows.tolist() for choice in examples.choose(RANKING, OUTCOME, near, _ByNumber(), 0)
  }
  assert found["Right"] == [0]
  assert (
    set(found["Plausible, and not labelled"][:2]) == {1, 5} and found["Plausible, and not labelled"][2] == 2
  )
  assert found["Wrong, and sure of it"] == [] and found["Missed"] == [6]


def test_one_first_label_is_shown_once_where_there_are_others():
  ids = np.array([[0], [0], [0], [1], [2], [3], [4], [5], [6]])
  assert examples._varied(list(range(9)), ids) == [0, 3, 4, 5, 6, 7]
  assert examples._varied([0, 1, 2, 3], ids) == [0, 3, 1, 2]
  assert examples._varied([], ids) == []


def test_no_rows_and_no_depth():
  none = Ranking(np.zeros((0, 3), np.int32), np.zeros((0, 3), np.float32))
  truth = sp.csr_matrix((0, 6), dtype=np.float32)
  outcome = examples.outcome(none, find_hits(none.ids, as_truth(truth)), np.zeros(0, np.int64))
  near = examples.near_pairs(none, outcome, truth, 0)
  assert all(not len(choice.rows) for choice in examples.choose(none, outcome, near, _ByNumber(), 0))


def test_marks_and_what_is_missing():
  names, frequency = [f"<{label}>" for label in range(40)], np.array([1] + [2000] * 39)
  ranking = Ranking(np.array([[0, 1, 2, 3, 4, 5, -1]]), np.array([[3.0, 2, 1, 0, -1, -2, -np.inf]]))
  text = examples.labels(ranking, 0, np.array([0, 5, *range(20, 30)]), names, frequency)
  assert text.count('class="right"') == 1 and text.count('class="wrong"') == 4
  assert "<bdi>&lt;0&gt;</bdi> <small>3.00 · 1 training point</small>" in text
  assert "&lt;5&gt;</bdi> <small>rank 6 · 2,000 training points" in text
  assert "&lt;20&gt;</bdi> <small>not in the first 7 · " in text
  assert "and 5 more true labels" in text and "&lt;29&gt;" not in text


def test_reasons_are_asked_for_what_is_shown():
  """Of points in rows 0 and 4: their first labels, and the true one that the second misses."""
  asked = []

  def why(rows, ids):
    asked.append((rows.tolist(), [labels[labels >= 0].tolist() for labels in ids]))
    return [{label: f"why {label}" for label in labels if label >= 0} for labels in ids.tolist()]

  choices = [examples.Choice("", "", np.array([4])), examples.Choice("", "", np.array([0]))]
  found = examples.reasons(choices, RANKING, TRUTH, why)
  assert asked == [([4, 0], [[2, 0, 1, 3], [1, 0, 2]])]
  assert found[4][3] == "why 3" and sorted(found[0]) == [0, 1, 2]
  assert examples.reasons([], RANKING, TRUTH, why) == {} and len(asked) == 1


def test_reasons_stand_below_their_labels():
  ranking, names = Ranking(np.array([[0, 1]]), np.array([[3.0, 2]])), ["a", "b", "c"]
  text = examples.labels(ranking, 0, np.array([0, 2]), names, np.ones(3, int), {0: "<first>", 2: "missed"})
  assert text.count('class="why"') == 2
  items = text.split("<li")[1:]
  assert '<span class="why"><bdi>&lt;first&gt;</bdi></span>' in items[0]
  assert "why" not in items[1] and "<bdi>missed</bdi>" in items[2]


def test_a_section_leaves_empty_kinds_out():
  split = types.SimpleNamespace(texts=[""] + ["<p>"] * 6, unfiltered_positives=TRUTH)
  kinds = [examples.Choice("a", "b", np.array([0, 1])), examples.Choice("none", "c", np.array([], int))]
  text = examples.section(kinds, split, list("abcdef"), RANKING, np.ones(6, int))
  assert "(empty text)" in text and "&lt;p&gt;" in text and "none" not in text
