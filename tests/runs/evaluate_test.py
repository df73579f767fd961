"""From embeddings to a ranking, to metrics by hand, to a file and back."""

import functools
import importlib.util
import io
import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import tiny_runs

from xmc_jax import methods, metrics
from xmc_jax.data import documents
from xmc_jax.data.dataset import Split
from xmc_jax.distributed import runtime
from xmc_jax.errors import UserError
from xmc_jax.retrieval import index
from xmc_jax.retrieval.fusion import Tree
from xmc_jax.retrieval.search import search
from xmc_jax.retrieval.sources import Queries
from xmc_jax.runs import evaluate
from xmc_jax.runs.best_labels import LabelRequest
from xmc_jax.runs.evaluate import Ranking
from xmc_jax.runs.model import Model
from xmc_jax.runs.predict import predict_lines
from xmc_jax.runs.trained import Trained
from xmc_jax.storage import run_folder


def _run(train_truth, k, tmp_path=None):
  texts = [f"label {label}" for label in range(train_truth.shape[1])]
  dataset = SimpleNamespace(
    train=SimpleNamespace(truth=train_truth),
    num_labels=train_truth.shape[1],
    labels=SimpleNamespace(texts=texts),
    label_keys=texts,
    label_names=texts,
  )
  return SimpleNamespace(
    config=SimpleNamespace(eval=SimpleNamespace(k=k)),
    dataset=dataset,
    workdir=tmp_path,
    ranking_folder=tmp_path,
    data=SimpleNamespace(inverse_propensity=metrics.inverse_propensity(train_truth, 0.55, 1.5)),
  )


TRAIN = sp.csr_matrix(np.array([[1, 0, 0, 1], [1, 0, 0, 0], [1, 1, 0, 0]], np.float32))
SPLIT = Split(
  truth=sp.csr_matrix(np.array([[0.5, 0, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0]], np.float32)),
  filter=sp.csr_matrix(np.eye(3, 4) * [[1], [0], [0]], dtype=bool),
  texts=["one", "two", "three"],
  tokens=None,
  row_numbers=np.arange(3),
)
RANKING = Ranking(
  np.array([[2, 1, 3], [0, 3, 1], [1, 2, -1]], np.int32),
  np.array([[2.0, 0.0, -1.0], [3.0, 0.0, 0.0], [0.0, -4.0, -np.inf]], np.float32),
)


def test_metrics_by_hand():
  found = evaluate.score(_run(TRAIN, 3), SPLIT, RANKING)
  names = ("P", "nDCG", "R", "F1", "PSP", "PSnDCG", "coverage")
  assert set(found) == {f"{name}@{k}" for name in names for k in (1, 3)} | {"LRAP"}
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
  assert found["LRAP"] == pytest.approx((1 + (1 / 2 + 2 / 3) / 2) / 2)


def test_predictions_keep_scores_of_zero_and_their_order(tmp_path, monkeypatch):
  path = tmp_path / "predictions" / "test.npz"
  evaluate.save_predictions(RANKING, ["a", "b\n", "", "é"], path)
  found = sp.load_npz(path)
  assert json.loads(np.load(path)["keys.json"]) == ["a", "b\n", "", "é"]
  assert found.shape == (3, 4) and found.nnz == 8
  for row in range(3):
    real = RANKING.ids[row] >= 0
    here = slice(found.indptr[row], found.indptr[row + 1])
    np.testing.assert_array_equal(found.indices[here], RANKING.ids[row][real])
    np.testing.assert_array_equal(found.data[here], RANKING.scores[row][real])
  assert [file.name for file in path.parent.iterdir()] == ["test.npz"]
  before = path.read_bytes()
  monkeypatch.setattr(time, "time", lambda: 1e9)
  evaluate.save_predictions(RANKING, ["a", "b\n", "", "é"], path)
  assert path.read_bytes() == before


def test_the_report_says_it_all(tmp_path):
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


def test_probabilities_are_held_against_the_truth(tmp_path):
  """Row 0 has its label 2 first, at 0.9; row 1 label 3 second and 1 third; row 2 has none."""
  scores = np.array([[0.9, 0.2, 0.1], [0.6, 0.5, 0.3], [0.4, 0.2, 0]], np.float32)
  ranking = RANKING._replace(scores=np.where(RANKING.ids >= 0, scores, -np.inf))
  evaluate.write_report(_run(TRAIN, 3, tmp_path), SPLIT, ranking, step=1, probabilities=True)
  found = json.loads((tmp_path / "report" / "metrics.json").read_text())["calibration"]
  assert found == evaluate.calibration(ranking, SPLIT.unfiltered_positives)
  # Every pair is in a bin of its own, but for the two of 0.2, which are both wrong.
  assert [one["pairs"] for one in found["bins"]] == [1, 2, 1, 1, 1, 1, 1]
  assert found["ece"] == pytest.approx((0.1 + 2 * 0.2 + 0.7 + 0.4 + 0.5 + 0.6 + 0.1) / 8)
  assert found["ece_first"] == pytest.approx((0.1 + 0.6 + 0.4) / 3)
  assert found["note"] == ""  # three rows prove nothing
  sets = json.loads((tmp_path / "report" / "metrics.json").read_text())["sets"]
  assert 1 <= sets["mean_size"] <= 3 and 0 < sets["sample_f1"] < 1
  assert evaluate.stored_report(tmp_path, "", 1)["calibration"] == found
  assert evaluate.stored_report(tmp_path, "", 2) == evaluate.stored_report(tmp_path, "_fused", 1) == {}


def test_probabilities_that_are_far_off_are_noted():
  ids = np.zeros((200, 1), np.int32)
  truth = sp.csr_matrix((np.arange(200) < 100).astype(np.float32)[:, None])
  for score, said in ((0.54, ""), (0.9, "first labels are 40 points off on the test rows, where chance ")):
    found = evaluate.calibration(Ranking(ids, np.full((200, 1), score, np.float32)), truth)
    assert said in found["note"] and bool(found["note"]) == bool(said)


@pytest.mark.parametrize(
  "shown, lines",
  [
    (1, "  two\n    · label 0\n    ○ label 1"),
    (2, "  two\n    · label 0\n    ✓ label 3\n    ○ label 1"),
    (5, "  one\n    ✓ label 2\n    · label 1\n    · label 3"),
    (5, "  three\n    · label 1\n    · label 2"),
  ],
)
def test_examples_tick_what_is_true_ring_what_is_not_shown_and_skip_padding(shown, lines, monkeypatch):
  monkeypatch.setattr(evaluate, "_LABELS_SHOWN", shown)
  assert lines in evaluate.examples(_run(TRAIN, 3), SPLIT, RANKING, 10)
  assert evaluate.examples(_run(TRAIN, 3), SPLIT, RANKING, 0) == ""


def test_half_of_the_examples_are_right():
  """Rows 0 to 3 have their label first, rows 4 to 19 have not; row 19 has no label at all."""
  truth = sp.csr_matrix(np.eye(5)[np.arange(20) % 5] * (np.arange(20) < 19)[:, None])
  firsts = np.array([[row % 5 if row < 4 else (row + 1) % 5] for row in range(19)] + [[-1]])
  for count, num_right in ((1, 1), (4, 2), (5, 3), (7, 4), (12, 4), (20, 4), (0, 0)):
    rows = evaluate._right_and_wrong(truth, firsts, count)
    assert len(set(rows.tolist())) == count and (rows < 4).sum() == num_right
    assert (rows[:num_right] < 4).all()
  assert len(evaluate._right_and_wrong(truth[:3], firsts[:3], 5)) == 3  # none is wrong


def test_examples_show_the_beginning_of_a_document(monkeypatch):
  monkeypatch.setattr(SPLIT, "texts", ["x" * 1249, "y" * 200, ""])
  shown = evaluate.examples(_run(TRAIN, 3), SPLIT, RANKING, 10)
  assert f"  {'x' * 200}…\n" in shown and f"  {'y' * 200}\n" in shown


# What ranks: exactly, or by an index that is kept.

NEEDS_SCANN = pytest.mark.skipif(importlib.util.find_spec("scann") is None, reason="needs ScaNN")


@pytest.fixture
def builds(monkeypatch):
  """The sizes of the indexes that were built."""
  made, build = [], index._build
  monkeypatch.setattr(index, "_build", lambda labels, k: made.append(labels.shape) or build(labels, k))
  return made


def _two_views(backend, folder, num_labels=1500):
  """A run whose labels have two halves, about common centres, and 120 queries about these."""
  rng = np.random.default_rng(0)
  middles = rng.normal(size=(100, 24))
  tables = [middles[rng.integers(0, 100, n)] + 0.7 * rng.normal(size=(n, 24)) for n in (num_labels, 120)]
  labels, queries = ((t / np.linalg.norm(t, axis=1, keepdims=True)).astype(np.float32) for t in tables)
  kept = {"": slice(None), "encoder": slice(12), "classifier": slice(12, None)}

  def embed_labels(params, extra_state, view=""):
    half = np.zeros_like(labels)
    half[:, kept[view]] = labels[:, kept[view]]
    return half

  config = methods.default_config()
  config.eval.backend = backend
  views = ("encoder", "classifier")
  method = SimpleNamespace(scorers=views, key_temperature=0, extra_state_to_rank=None)
  run = SimpleNamespace(
    config=config,
    workdir=folder,
    ranking_folder=folder,
    mesh=None,
    method=method,
    check_scores=lambda scores: None,
    data=SimpleNamespace(inverse_propensity=np.ones(num_labels)),
    embedder=SimpleNamespace(labels=embed_labels),
  )
  return run, queries


@NEEDS_SCANN
@pytest.mark.parametrize("view", ["fused", "encoder", "classifier"])
def test_an_index_ranks_by_the_whole_and_by_each_half(view, tmp_path, builds):
  run, queries = _two_views("scann", tmp_path)
  labels = run.embedder.labels(None, None, view if view != "fused" else "")
  exclude = sp.csr_matrix(np.random.default_rng(1).random((120, 1500)) < 0.01)
  rank = Trained(run, None, None).ranker(view)
  few = rank(Queries(queries[:3], [""] * 3), 5)
  np.testing.assert_array_equal(few.ids, search(queries[:3], labels, 5).ids)
  assert not builds
  for k, left_out in ((5, None), (100, exclude), (5, exclude)):
    found = rank(Queries(queries, [""] * len(queries)), k, exclude=left_out)
    exact = search(queries, labels, k, exclude=left_out)
    both = sum(np.intersect1d(a, b).size for a, b in zip(found.ids, exact.ids))
    assert both >= index.RECALL * exact.ids.size
    products = np.take_along_axis(queries @ labels.T, found.ids, axis=1)
    np.testing.assert_allclose(found.scores, products, rtol=0, atol=1e-5)
    assert left_out is None or not np.take_along_axis(exclude.toarray(), found.ids, axis=1).any()
  assert builds == [(1500, 24 if view == "fused" else 12)]


@pytest.mark.parametrize("reason", ["default", "auto", "processes", "tree"])
def test_what_is_ranked_exactly(reason, tmp_path, builds, capfd, monkeypatch):
  backend = {"default": methods.default_config().eval.backend, "auto": "auto"}.get(reason, "scann")
  run, queries = _two_views(backend, tmp_path)
  if reason == "processes":
    monkeypatch.setattr(runtime, "is_alone", lambda: False)
  if reason == "tree":
    leaf = Tree(*(np.array([value]) for value in (-1, 0.0, -1, -1, 0.25)))
    leaf.save(tmp_path / run_folder.FUSION)
  found = Trained(run, None, None).ranker("fused")(Queries(queries, [""] * len(queries)), 10)
  exact = search(queries, run.embedder.labels(None, None), 10)
  np.testing.assert_array_equal(found.ids, exact.ids)
  said = capfd.readouterr().err.splitlines()
  assert not builds and len(said) == (backend == "scann")
  assert all(line.startswith("ranking: exact, as eval.backend = 'scann' ") for line in said)


@pytest.mark.slow
@NEEDS_SCANN
def test_a_model_builds_its_index_once(tmp_path, builds, monkeypatch):
  monkeypatch.setattr(index, "_SMALLEST", 50)
  data = tiny_runs.write_data(tmp_path / "data")
  run = tiny_runs.open_run(data, tmp_path / "run", **{"eval.backend": "scann"})
  trained = Trained(run, *run.initial_parameters())
  model = Model(trained)
  texts = run.dataset.test.texts
  labels, queries = trained.labels(), model.embed(texts)
  exact = functools.partial(search, queries, labels)

  np.testing.assert_array_equal(model.predict(texts[:3], 5)[0], exact(5).ids[:3])
  assert not builds
  for k in (5, 20, 60, 5):
    ids, scores, names = model.predict(texts, k)
    assert np.mean(scores >= exact(k).scores[:, -1:] - 1e-5) >= index.RECALL
    np.testing.assert_allclose(scores, np.take_along_axis(queries @ labels.T, ids, axis=1), atol=1e-5)
    assert names[0] == [run.dataset.labels.texts[label] for label in ids[0]]
  out = io.StringIO()
  assert predict_lines(model, documents.of_lines(texts), out, LabelRequest(5), block=20) == 50
  assert len(out.getvalue().splitlines()) == 50
  assert builds == [labels.shape]
  with pytest.raises(UserError, match="k = 61: there are 60 labels; set 1 to 60"):
    model.predict(texts, 61)
