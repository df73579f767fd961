"""What peers' workers read and leave, batches of pairs, child processes, and how rankings are judged."""

import json
import sys

import ml_collections
import numpy as np
import scipy.sparse as sp
import tiny_runs

from benchmarks import accuracy_results, children, exchange, pair_batches
from xmc_jax.runs import evaluate

SETTINGS = ml_collections.ConfigDict({"propensity_a": 0.55, "propensity_b": 1.5, "k": 10})


# --- files between environments ---


def test_rankings_of_a_worker_by_hand():
  """Filtered pairs go, equal scores come by rising id, and a stored 0 or a score below 0 still counts."""
  scores = sp.csr_matrix(
    (np.array([0.5, 0.5, 0.9, -0.1, 0.0], np.float32), np.array([2, 1, 3, 0, 2]), np.array([0, 3, 5, 5])),
    (3, 4),
  )
  filtered = sp.csr_matrix(np.array([[0, 0, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]], np.float32))
  found = exchange.ranked(scores, filtered, 3)
  assert found.ids.tolist() == [[1, 2, -1], [2, 0, -1], [-1, -1, -1]]
  scores = [[0.5, 0.5, -np.inf], [0, -0.1, -np.inf], [-np.inf] * 3]
  np.testing.assert_array_equal(found.scores, np.array(scores, np.float32))


def test_predictions_come_back_as_they_were_ranked(tmp_path):
  ids = np.array([[3, 0, -1], [2, -1, -1], [-1, -1, -1], [1, 2, 0]], np.int32)
  ranking = exchange.Ranking(ids, np.where(ids >= 0, -ids.astype(np.float32), -np.inf))
  evaluate.save_predictions(ranking, "abcde", tmp_path / "test.npz")
  assert evaluate.read_predictions(tmp_path / "test.npz", 4).ids[:, :3].tolist() == ids.tolist()
  assert evaluate.read_predictions(tmp_path / "test.npz", 4).ids[:, 3].tolist() == [-1] * 4
  first = evaluate.read_predictions(tmp_path / "test.npz", 1)
  assert first.ids.tolist() == [[3], [2], [-1], [1]]
  assert first.scores.tolist() == [[-3], [-2], [-np.inf], [-1]]


def test_a_worker_gets_texts_and_what_can_be_learnt(dataset, tmp_path):
  exchange.write(dataset, tmp_path)
  texts = [json.loads(line) for line in (tmp_path / "train.txt").read_text().splitlines()]
  assert texts == list(dataset.train.texts)
  truth = sp.load_npz(tmp_path / "truth.npz").toarray()
  assert truth.shape == (200, tiny_runs.NUM_LABELS) and set(np.unique(truth)) == {0, 1}
  np.testing.assert_array_equal(truth > 0, dataset.train.unfiltered_positives.toarray() > 0)
  assert exchange.depth_for(dataset.test, 10) == 10 + int((dataset.test.filter > 0).sum(1).max())
  assert exchange.depth_for(dataset.test, 100) == tiny_runs.NUM_LABELS


def test_a_childs_memory_is_its_own(tmp_path):
  """300 MB more than a child that does nothing; what it says goes to the log, one after the other."""
  body = "import time; print('said'); block = bytearray(b'1') * {}; time.sleep(0.5)"
  peaks = []
  for size in (1, 300_000_000):
    code, peak = children.run([sys.executable, "-c", body.format(size)], tmp_path / "log", tmp_path)
    assert code == 0
    peaks.append(peak)
  assert 280e6 < peaks[1] - peaks[0] < 330e6 and peaks[0] < 100e6
  assert (tmp_path / "log").read_text() == "said\nsaid\n"
  assert children.run([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log", tmp_path)[0] == 3


def test_pairs_are_dealt_without_repeats_by_hand():
  """Pairs 0 and 1 share a text, 2 and 3, 4 and 5: of two they wait, and the last ones find no other."""
  names = [(0, 1), (2, 1), (3, 4), (5, 4), (6, 7), (6, 8)]
  assert pair_batches.without_repeats(names, 2) == [[0, 2], [1, 3]]
  assert pair_batches.without_repeats(names, 3) == [[0, 2, 4], [1, 3, 5]]
  assert pair_batches.without_repeats(names, 5) == [[0, 2, 4], [1, 3, 5]]  # more than half full
  assert pair_batches.without_repeats(names, 7) == pair_batches.without_repeats([], 2) == []


def test_an_epoch_has_true_pairs_and_no_text_twice_in_a_batch(dataset):
  texts = {"train": list(dataset.train.texts), "labels": list(dataset.labels.texts)}
  truth = sp.csr_matrix(dataset.train.unfiltered_positives)
  made, again, other = (pair_batches.pairs_of_epoch(truth, texts, 16, (0, epoch)) for epoch in (0, 0, 1))
  pairs = np.concatenate(made)
  assert len({tuple(pair) for pair in pairs.tolist()}) == len(pairs) > 0.8 * truth.nnz
  assert (np.asarray(truth[pairs[:, 0], pairs[:, 1]]) > 0).all()
  for batch in made:
    of_pairs = [{texts["train"][point], texts["labels"][label]} for point, label in batch.tolist()]
    assert 8 <= len(batch) <= 16 and len(set().union(*of_pairs)) == sum(map(len, of_pairs))
  assert [batch.tolist() for batch in made] == [batch.tolist() for batch in again]
  assert not np.array_equal(made[0], other[0])
  assert 20 <= sum(map(len, pair_batches.pairs_of_epoch(truth, texts, 256, 0, most=40))) <= 40
  assert not pair_batches.pairs_of_epoch(sp.csr_matrix(truth.shape), texts, 16, 0)


# --- metrics and differences ---


def _result(ids):
  return accuracy_results.Result(np.array(ids), 12.0, 3.0, 2_500_000_000, {})


def test_an_outcome_by_hand(dataset):
  """The truth itself against rankings that miss everything: 1 ahead at P@1 of rows with labels."""
  counted = dataset.test.unfiltered_positives
  right = np.full((50, 10), -1)
  wrong = np.full((50, 10), -1)
  for row in range(50):
    true = counted[row].indices
    right[row, : len(true)] = true
    wrong[row] = [label for label in range(tiny_runs.NUM_LABELS) if label not in set(true)][:10]
  judge = accuracy_results.Judge(dataset, SETTINGS)
  found = judge.outcome(2, _result(right), "a machine", wrong)
  assert found["seed"] == 2 and found["machine"] == "a machine"
  assert (found["fit_seconds"], found["test_seconds"], found["peak_GB"]) == (12, 3, 2.5)
  assert found["metrics"]["R@10"] == 1 and found["metrics"]["PSP@5"] == 1
  assert set(found["metrics"]) == set(accuracy_results.KEPT) - {"R@100"}  # eval.k is 10
  value, low, high = found["to_xr_linear"]["R@10"]
  assert (value, low, high) == (1, 1, 1)
  low, high = found["intervals_95"]["P@1"]
  assert low <= found["metrics"]["P@1"] <= high and found["to_xr_linear"]["P@1"][0] == found["metrics"]["P@1"]
  assert "to_xr_linear" not in judge.outcome(0, _result(right), "a machine", None)


def test_a_rows_file_holds_each_seed_once(tmp_path):
  path = tmp_path / "SET" / "row.json"
  assert accuracy_results.read(path) == {}
  for seed, value in ((1, 0.1), (0, 0.2), (1, 0.3)):
    accuracy_results.keep(path, {"what": "a row"}, {"seed": seed, "metrics": {"P@1": value}})
  kept = accuracy_results.read(path)
  assert kept["what"] == "a row" and [seed["seed"] for seed in kept["seeds"]] == [0, 1]
  assert accuracy_results.seed_of(kept, 1)["metrics"] == {"P@1": 0.3}
  assert accuracy_results.seed_of(kept, 2) == {}
  assert list(path.parent.iterdir()) == [path]
