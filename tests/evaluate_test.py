"""From embeddings to a ranking, to metrics by hand, to a file and back."""

import types

import numpy as np
import pytest
import scipy.sparse as sp

from xmc_jax import evaluate, metrics
from xmc_jax.data.dataset import Split
from xmc_jax.evaluate import Ranking


def _csr(rows, num_labels):
  matrix = sp.lil_matrix((len(rows), num_labels), dtype=bool)
  for row, labels in enumerate(rows):
    matrix[row, labels] = True
  return matrix.tocsr()


def _run(train_truth, k, tmp_path=None):
  config = types.SimpleNamespace(eval=types.SimpleNamespace(k=k))
  texts = [f"label {label}" for label in range(train_truth.shape[1])]
  dataset = types.SimpleNamespace(
    train=types.SimpleNamespace(truth=train_truth),
    num_labels=train_truth.shape[1],
    labels=types.SimpleNamespace(texts=texts),
  )
  inverse = metrics.inverse_propensity(train_truth, 0.55, 1.5)
  return types.SimpleNamespace(config=config, dataset=dataset, workdir=tmp_path, inverse_propensity=inverse)


TRAIN = sp.csr_matrix(np.array([[1, 0, 0, 1], [1, 0, 0, 0], [1, 1, 0, 0]], np.float32))
SPLIT = Split(
  truth=sp.csr_matrix(np.array([[0.5, 0, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0]], np.float32)),
  filter=_csr([[0], [], []], 4),
  texts=["one", "two", "three"],
  tokens=None,
  row_numbers=np.arange(3),
)
RANKING = Ranking(
  np.array([[2, 1, 3], [0, 3, 1], [1, 2, -1]], np.int32),
  np.array([[2.0, 0.0, -1.0], [3.0, 0.0, 0.0], [0.0, -4.0, -np.inf]], np.float32),
)


def test_filtered_labels_are_not_true():
  kept = SPLIT.counted
  np.testing.assert_array_equal(kept.toarray(), [[0, 0, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0]])
  assert kept.nnz == 3


def test_metrics_by_hand():
  found = evaluate.score(_run(TRAIN, 3), SPLIT, RANKING)
  names = ("P", "nDCG", "R", "PSP", "PSnDCG", "coverage")
  assert set(found) == {f"{name}@{k}" for name in names for k in (1, 3)}
  assert list(evaluate.shown(found)) == ["P@1", "P@3", "nDCG@1", "nDCG@3", "PSP@1", "PSP@3"]
  assert found["P@1"] == pytest.approx(1 / 3)  # the third row has no labels, and counts as 0
  assert found["P@3"] == pytest.approx((1 / 3 + 2 / 3) / 3)
  log = np.log2
  ideal = 1 + 1 / log(3)
  assert found["nDCG@1"] == pytest.approx(1 / 3)
  assert found["nDCG@3"] == pytest.approx((1 + (1 / log(3) + 1 / log(4)) / ideal) / 3)
  counts, c = np.array([3, 1, 0, 1]), (np.log(3) - 1) * 2.5**0.55
  inverse = 1 + c * (counts + 1.5) ** -0.55
  assert found["PSP@1"] == pytest.approx(inverse[2] / (inverse[2] + inverse[1]), rel=1e-5)
  assert found["PSP@3"] == pytest.approx(1.0)


def test_predictions_keep_scores_of_zero_and_their_order(tmp_path):
  path = tmp_path / "predictions" / "test.npz"
  evaluate.save_predictions(RANKING, 4, path)
  found = sp.load_npz(path)
  assert found.shape == (3, 4) and found.nnz == 8
  for row in range(3):
    real = RANKING.ids[row] >= 0
    here = slice(found.indptr[row], found.indptr[row + 1])
    np.testing.assert_array_equal(found.indices[here], RANKING.ids[row][real])
    np.testing.assert_array_equal(found.data[here], RANKING.scores[row][real])
  assert [file.name for file in path.parent.iterdir()] == ["test.npz"]


def test_the_report_says_it_all(tmp_path):
  import json

  run = _run(TRAIN, 3, tmp_path)
  means = evaluate.write_report(run, SPLIT, RANKING, step=12)
  report = json.loads((tmp_path / "report" / "metrics.json").read_text())
  assert report["step"] == 12 and report["rows"] == 3 and report["rows_without_labels"] == 1
  assert report["metrics"] == means == evaluate.score(run, SPLIT, RANKING)
  for name, (low, high) in report["intervals_95"].items():
    assert low <= means[name] <= high
  for parts in report["slices"].values():
    assert sum(parts["P@1"]) == pytest.approx(means["P@1"])
  assert (tmp_path / "predictions" / "test.npz").exists()


def test_examples_tick_what_is_true_and_skip_padding():
  shown = evaluate.examples(_run(TRAIN, 3), SPLIT, RANKING, 10)
  assert "  one\n    ✓ label 2\n    · label 1\n    · label 3" in shown
  assert "  three\n    · label 1\n    · label 2" in shown
  assert evaluate.examples(_run(TRAIN, 3), SPLIT, RANKING, 0) == ""
