"""Exports of runs that rank by all sources: what is in their memory, and that they rank as the run does."""

import json
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp

from tests.export import made_runs
from xmc_jax import export
from xmc_jax.data import Dataset
from xmc_jax.errors import UserError
from xmc_jax.export import label_files, memory_files
from xmc_jax.retrieval import hybrid_model
from xmc_jax.runs.model import Model

pytestmark = pytest.mark.slow

TEXTS = ["bamarn nuve", "keltbarn " * 30, "lolt", "ramarass suth", "[SEP] nuve", "mixo kelt rage"]
NEW = "zathura document viewer"  # of words that no other text has


@pytest.fixture(scope="module")
def exported(folder):
  return made_runs.exported(folder, "bag", "hybrid") / "export"


def assert_alike(found, wanted):
  """The same labels in the same order, but where the run's own scores are as good as equal."""
  assert np.array_equal(found[0] < 0, wanted[0] < 0)
  np.testing.assert_allclose(found[1], wanted[1], atol=1e-5)
  finite = np.where(np.isfinite(wanted[1]), wanted[1], 0)
  clear = np.abs(np.diff(finite, axis=1)).min(axis=1) > 1e-4
  assert clear.any()
  np.testing.assert_array_equal(found[0][clear], wanted[0][clear])


# The two that train longest.
_LONGEST = ("bag_raw", "prime", "rae_xmc", "classifier", "bert", "unidec")
SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in _LONGEST]


@pytest.mark.parametrize("kind", ["prior", "bag", "ova", *SLOW])
def test_an_export_ranks_by_all_sources_as_the_run_does(folder, kind, tmp_path):
  workdir = made_runs.made(folder, kind, "hybrid")
  export.export(workdir, str(tmp_path / "first"))
  model = Model.load(workdir)
  wanted = model.predict(TEXTS, 5, explain=True)
  (tmp_path / "first").rename(tmp_path / "moved")
  opened = export.Exported.load(tmp_path / "moved")
  found = opened.predict(TEXTS, 5, explain=True)
  assert_alike(found, wanted)
  assert found[2] == [[model.labels[label] for label in row] for row in found[0].tolist()]
  assert ((found[1] > 0) & (found[1] < 1)).all()  # probabilities
  texts = [row["voters"] for of_text in found[3] for row in of_text if row["voters"]]
  assert texts and all(
    voter["text"] in list(model._learner.now(opened=True).ranker.point_texts)
    for row in texts
    for voter in row
  )
  for one, other, same in zip(found[3], wanted[3], (found[0] == wanted[0]).all(axis=1)):
    assert not same or [row["sources"] for row in one] == [row["sources"] for row in other]
  facts = json.loads((tmp_path / "moved" / "export.json").read_text())
  assert facts["ranks_by"] == "hybrid" and facts["version"] == 3


def test_trees_that_were_fitted_go_with_it(folder, tmp_path, monkeypatch):
  monkeypatch.setattr(hybrid_model, "FEWEST_ROWS", 10)
  workdir = made_runs.make(folder, "dpr", "hybrid")
  texts = list(Model.load(workdir)._run.dataset.test.texts)
  wanted = Model.load(workdir).predict(texts, 3)
  assert json.loads((workdir / "hybrid.json").read_text())["num_rows"] == 20
  export.export(workdir, str(tmp_path / "out"))
  assert (tmp_path / "out" / "memory" / "hybrid.json").read_text() == (workdir / "hybrid.json").read_text()
  assert_alike(export.Exported.load(tmp_path / "out").predict(texts, 3), wanted)


def test_the_memory_holds_the_training_rows_that_have_labels(folder, exported):
  model = Model.load(made_runs.made(folder, "bag", "hybrid"))
  train = model._run.dataset.train
  rows = np.flatnonzero(np.diff(train.unfiltered_positives.indptr))
  assert 0 < len(rows) < len(train)
  memory, texts = exported / "memory", [train.texts[row] for row in rows]
  points = np.load(memory / "points.npy", allow_pickle=False)
  assert points.dtype == np.float32
  np.testing.assert_allclose(points, model.embed(texts), atol=2e-6)
  lines = (memory / "points.jsonl").read_text().splitlines()
  assert list(map(json.loads, lines)) == [{"id": number, "text": text} for number, text in enumerate(texts)]
  columns, offsets = (np.load(memory / name) for name in ("point_labels.npy", "point_labels_offsets.npy"))
  truth = sp.csr_matrix((np.ones(len(columns)), columns, offsets), (len(rows), 60)).toarray()
  np.testing.assert_array_equal(truth, train.unfiltered_positives[rows].toarray() > 0)
  assert not list(exported.rglob("*.pkl"))


def both(folder, num, width):
  """The vectors of index/both.faiss, read without FAISS, as docs/export.md says."""
  head, path = 45, folder / "index" / "both.faiss"
  assert path.stat().st_size == head + 4 * num * width
  assert np.fromfile(path, "<i4", 1, offset=4) == width and np.fromfile(path, "<i8", 1, offset=8) == num
  return np.memmap(path, "<f4", "r", head, (num, width))


def test_one_index_has_points_and_behind_them_labels(folder, exported, copied):
  points = np.load(exported / "memory" / "points.npy").astype(np.float64)
  labels = np.load(exported / "index" / "labels.npy")
  unit = points / np.linalg.norm(points, axis=1, keepdims=True)
  found = both(exported, len(points) + 60, 16)
  np.testing.assert_allclose(found[: len(points)], unit, atol=1e-6)
  np.testing.assert_array_equal(found[len(points) :], labels)
  opened = export.Exported.load(copied)
  opened.add_labels([NEW])
  grown = both(copied, len(points) + 61, 16)
  np.testing.assert_array_equal(grown[:-1], found)
  np.testing.assert_allclose(grown[-1], opened.embed([NEW])[0], atol=1e-6)


def test_a_vector_of_no_length_stays_what_it_is(tmp_path):
  points = np.array([[0, 0], [3, 4]], np.float32)
  labels = np.array([[1, 1]], np.float32)
  of_labels = {"keys": ["a"], "names": ["a"], "facts": [{}]}
  label_files.write(tmp_path / "index", [labels], ["a"], labels, **of_labels, points=points)
  np.testing.assert_allclose(both(tmp_path, 3, 2), [[0, 0], [0.6, 0.8], [1, 1]], atol=1e-7)


def test_votes_by_relevance_are_those_of_the_run(exported, tmp_path):
  opened, model = memory_files.read(exported / "memory", 60, ["encoder"])
  opened.truth.data[:] = np.linspace(0.1, 1, opened.truth.nnz)
  memory_files.write(tmp_path / "memory", opened, model, [opened.point_vectors])
  found, _ = memory_files.read(tmp_path / "memory", 60, ["encoder"])
  np.testing.assert_array_equal(found.truth.toarray(), opened.truth.toarray())


def test_vectors_are_written_as_they_come(tmp_path):
  rows, width = 1 << 12, 64  # a block is 1 MiB
  blocks = (np.full((rows, width), number, np.float32) for number in range(40))
  tracemalloc.start()
  try:
    label_files.write_vectors(tmp_path / "points.npy", 40 * rows, blocks)
    points = label_files.open_array(tmp_path / "points.npy", 40 * rows)
    parts = (points[at : at + 9] for at in range(0, 90, 9))
    label_files.write_faiss(tmp_path / "both.faiss", points.shape, parts)
    peak = tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()
  assert peak < 5 << 20
  np.testing.assert_array_equal(points[::rows, 0], np.arange(40))


@pytest.mark.parametrize("kind", ["bag", SLOW[1]])
def test_a_new_label_is_found_by_its_text(folder, kind, tmp_path):
  workdir = made_runs.made(folder, kind, "hybrid")
  export.export(workdir, str(tmp_path / "out"))
  memory = {path.name: path.read_bytes() for path in (tmp_path / "out" / "memory").iterdir()}
  opened = export.Exported.load(tmp_path / "out")
  before = opened.predict(TEXTS, 3)
  assert opened.add_labels([NEW]).tolist() == [60]
  for again in (opened, export.Exported.load(tmp_path / "out")):
    ids, _, texts, reasons = again.predict([NEW], 5, explain=True)
    assert ids[0, 0] == 60 and texts[0][0] == NEW
    assert reasons[0][0] == {
      "words": "words of its name occur in the text; the model learnt that it fits such texts",
      "sources": {"encoder": 1, "lexical_labels": 1},
      "voters": [],
    }
    assert again.add_labels(["supath kedy nuxo"]).tolist() == [61]  # words that labels with points have, too
    ids, _, _, reasons = again.predict(["supath kedy nuxo"], 5, explain=True)
    place = ids[0].tolist().index(61)
    assert reasons[0][place]["sources"] == {"encoder": 1, "lexical_labels": 1}
    # One more text changes how rare words are, and so a little of all.
    assert (again.predict(TEXTS, 3)[0] == before[0]).mean() > 0.8
  assert memory == {path.name: path.read_bytes() for path in (tmp_path / "out" / "memory").iterdir()}
  if kind == "unidec":
    index = tmp_path / "out" / "index"
    by_text, by_classifier = (np.load(index / f"labels_{view}.npy") for view in ("encoder", "classifier"))
    assert by_text.shape == by_classifier.shape == (62, 20)
    assert by_text[60].any() and by_classifier[59].any() and not by_classifier[60].any()
    np.testing.assert_allclose(np.load(index / "labels.npy"), by_text + by_classifier, atol=1e-6)


def test_other_scores_are_exported_as_ever(folder, tmp_path):
  workdir = made_runs.made(folder, "bag", "hybrid")
  export.export(workdir, str(tmp_path / "out"), scores="encoder")
  assert not any((tmp_path / "out" / name).exists() for name in ("memory", "index/both.faiss"))
  opened, model = export.Exported.load(tmp_path / "out"), Model.load(workdir, scores="encoder")
  assert_alike(opened.predict(TEXTS, 5), model.predict(TEXTS, 5))
  with pytest.raises(UserError, match=r"explain=True.*--scores=hybrid"):
    opened.predict(TEXTS, 5, explain=True)
  for source in ("memory", "lexical_labels"):
    with pytest.raises(UserError, match=rf"scores = '{source}'.*--scores=hybrid") as caught:
      export.export(workdir, str(tmp_path / "other"), scores=source)
    assert "\n" not in str(caught.value) and not (tmp_path / "other").exists()


def test_a_run_told_otherwise_is_exported_with_all_sources_where_asked(folder, tmp_path):
  workdir = made_runs.make(folder, "ngame")
  export.export(workdir, str(tmp_path / "out"), scores="hybrid")
  model = Model.load(workdir, scores="hybrid")
  assert_alike(export.Exported.load(tmp_path / "out").predict(TEXTS, 5), model.predict(TEXTS, 5))


def test_texts_of_which_nothing_is_known(exported):
  opened = export.Exported.load(exported)
  assert opened.predict([], 2, explain=True)[3] == []
  ids, scores, texts = opened.predict(["", "\ud800"], 60)
  assert ids.shape == scores.shape == (2, 60)
  assert [len(row) for row in texts] == (ids >= 0).sum(axis=1).tolist()


def test_a_run_in_half_precision_has_a_memory_in_full(folder, tmp_path):
  settings = {"eval.scores": "hybrid", "encoder.dtype": "bfloat16"}
  workdir = made_runs.make(folder, "bag", "hybrid_bf16", **settings)
  export.export(workdir, str(tmp_path / "out"))
  opened = export.Exported.load(tmp_path / "out")
  lines = (tmp_path / "out/memory/points.jsonl").read_text().splitlines()
  texts = [json.loads(line)["text"] for line in lines]
  points = np.load(tmp_path / "out/memory/points.npy")
  np.testing.assert_allclose(points, opened.embed(texts), atol=2e-6)
  assert opened.predict(TEXTS, 3)[0].shape == (len(TEXTS), 3)


def test_a_card_says_which_tool_gets_what_and_how_good_it_is(folder, tmp_path):
  workdir = made_runs.made(folder, "bag", "hybrid")
  report = {"step": 1, "rows": 50, "metrics": {"P@1": 0.5}, "intervals_95": {"P@1": [0.4, 0.6]}}
  report["by_source"] = {"encoder": {"P@1": 0.25}}
  (workdir / "report" / "metrics.json").write_text(json.dumps(report))
  export.export(workdir, str(tmp_path / "both"))
  text = (tmp_path / "both" / "README.md").read_text()
  assert "| P@1 | 50.00 | 40.00 to 60.00 | 25.00 |" in text
  assert "`memory/points.npy`" in text and "`index/both.faiss`" in text
  assert "probabilities" in text and "training texts" in text
  assert "| `Exported` | all of it" in text and "| FAISS, ScaNN | the encoder alone" in text
  export.export(workdir, str(tmp_path / "alone"), scores="encoder")
  other = (tmp_path / "alone" / "README.md").read_text()
  assert "| P@1 | 25.00 |  |" in other and "memory/" not in other and "no probabilities" in other


def test_a_deprecated_label_is_no_answer_and_facts_stay_with_the_label(folder, tmp_path, monkeypatch):
  workdir = made_runs.made(folder, "bag", "hybrid")
  ids, *_ = Model.load(workdir).predict(TEXTS, 5)
  old = int(ids[0, 0])
  concepts = {old: {"notation": "78.9", "deprecated": True}, 3: {"notation": "", "deprecated": False}}
  monkeypatch.setattr(Dataset, "concept", lambda _, label: concepts.get(label, {}))
  export.export(workdir, str(tmp_path / "out"))
  opened = export.Exported.load(tmp_path / "out")
  for _ in range(2):
    found, *_ = opened.predict(TEXTS, 5)
    assert old not in found and (found[0, :4] == ids[0, 1:]).all()
    lines = (tmp_path / "out" / "index" / "labels.jsonl").read_text().splitlines()
    assert json.loads(lines[old]).items() >= concepts[old].items() and "notation" not in json.loads(lines[3])
    opened.add_labels([NEW])
