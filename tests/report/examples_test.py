"""Which points are shown, by hand, and how their labels are marked."""

from types import SimpleNamespace

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


def _nearness(one, other):
  """Labels are as near as their numbers."""
  return -np.abs(one - other).astype(float)


def test_each_point_is_shown_once_in_its_kind():
  asked = []

  def nearness(one, other):
    asked.extend(zip(one.tolist(), other.tolist()))
    return _nearness(one, other)

  chosen = examples.choose(RANKING, HITS, TRUTH, nearness)
  assert sorted(asked) == [(0, 1), (0, 5), (1, 0)]  # wrong first labels, and true ones of their points
  assert chosen.right.tolist() == [0] and chosen.missed.tolist() == [6] and not len(chosen.sure)
  assert set(chosen.plausible[:2]) == {1, 5} and chosen.plausible[2] == 2 and chosen.num_compared == 3


def test_the_largest_lead_is_first(monkeypatch):
  """Of points 1 and 5, which have a true label behind a wrong one."""
  monkeypatch.setattr(examples, "_CANDIDATES", 0)
  assert examples.choose(RANKING, HITS, TRUTH, _nearness).sure.tolist() == [5, 1]


def test_one_first_label_is_shown_once_where_there_are_others():
  ids = np.array([[0], [0], [0], [1], [2], [3], [4], [5], [6]])
  assert examples._varied(list(range(9)), ids) == [0, 3, 4, 5, 6, 7]
  assert examples._varied([0, 1, 2, 3], ids) == [0, 3, 1, 2]
  assert examples._varied([], ids) == []


def test_marks_and_what_is_missing():
  names, frequency = [f"<{label}>" for label in range(40)], np.array([1] + [2000] * 39)
  ranking = Ranking(np.array([[0, 1, 2, 3, 4, 5, -1]]), np.array([[3.0, 2, 1, 0, -1, -2, -np.inf]]))
  reasons = {0: "first", 20: "missed"}
  truth = sp.csr_matrix(([1.0] * 12, [0, 5, *range(20, 30)], [0, 12]), shape=(1, 40))
  test = SimpleNamespace(unfiltered_positives=truth)
  dataset = SimpleNamespace(label_names=names, test=test)
  lines, more = examples.labels(dataset, frequency, {0: reasons}, ranking, 0)
  assert [line.kind for line in lines] == ["right"] + ["wrong"] * 4 + ["missed"] * 6 and more == 5
  assert lines[0] == ("right", "<0>", "3.00", 1, "first")
  assert lines[5] == ("missed", "<5>", "rank 6", 2000, "")
  assert lines[6] == ("missed", "<20>", "not in the first 7", 2000, "missed")


def test_reasons_are_asked_for_what_is_shown():
  """Of points in rows 0 and 4: their first labels, and the true one that the second misses."""
  asked = []

  def why(rows, ids):
    asked.append((rows.tolist(), [labels[labels >= 0].tolist() for labels in ids]))
    return [{label: f"why {label}" for label in labels if label >= 0} for labels in ids.tolist()]

  found = examples.reasons(np.array([4, 0]), RANKING, TRUTH, why)
  assert asked == [([4, 0], [[2, 0, 1, 3], [1, 0, 2]])]
  assert found[4][3] == "why 3" and sorted(found[0]) == [0, 1, 2]
  assert examples.reasons(np.zeros(0, int), RANKING, TRUTH, why) == {} and len(asked) == 1
