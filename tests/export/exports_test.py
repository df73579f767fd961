"""Every method's run exported: what is in the folder, and that it predicts as the run does."""

import json

import numpy as np
import pytest

from tests.export import made_runs
from xmc_jax import export
from xmc_jax.errors import UserError
from xmc_jax.export import label_files
from xmc_jax.runs.model import Model

pytestmark = pytest.mark.slow

TEXTS = ["bamarn nuve", "", "keltbarn " * 60, "lolt", "[SEP] ramarass"]


# The others differ from one of these in how they were trained, or in an encoder's size and pooling.
QUICK = ("bag", "prior", "dexa", "windows", "rae_xmc", "classifier")


@pytest.mark.parametrize(
  "kind",
  [*QUICK, *(pytest.param(kind, marks=pytest.mark.slow) for kind in made_runs.KINDS if kind not in QUICK)],
)
def test_an_export_predicts_as_the_run_does_and_takes_labels(folder, kind, capfd):
  workdir = made_runs.exported(folder, kind)
  view = "encoder" if kind == "rae_xmc" else ""  # the memory is not exported
  model, found = Model.load(workdir, scores=view), export.Exported.load(workdir / "export")
  np.testing.assert_allclose(found.embed(TEXTS), model.embed(TEXTS), atol=2e-6)
  ids, scores, texts = found.predict(TEXTS, 7)
  wanted = model.predict(TEXTS, 7)
  np.testing.assert_allclose(scores, wanted[1], atol=2e-5)
  clear = np.abs(np.diff(wanted[1], axis=1)).min(axis=1) > 1e-4
  np.testing.assert_array_equal(ids[clear], wanted[0][clear])
  assert texts[0] == [model.labels[label] for label in ids[0]] and list(found.labels) == list(model.labels)

  has_sentence = (workdir / "export" / "sentence_transformers" / "modules.json").exists()
  assert has_sentence == (kind != "gru")
  assert ("no sentence_transformers/" in capfd.readouterr().err) == (kind == "gru")
  if kind in (*made_runs.NO_NEW_LABELS, "unidec"):  # an export of the latter ranks by one half
    with pytest.raises(UserError, match="ranks labels by more than their texts"):
      Model.load(workdir, scores=view, add_labels={"n": "a new label"})
  if kind in made_runs.NO_NEW_LABELS:
    with pytest.raises(UserError, match="no label can be added"):
      found.add_labels(["a new label"])
    return
  held_out = "supath kedy nuxo"
  assert found.add_labels([held_out, model.labels[3], held_out]).tolist()[0::2] == [60, 60]
  again = export.Exported.load(workdir / "export")
  assert len(again.labels) == 61 and again.labels[60] == held_out
  ids, scores, _ = again.predict([held_out], 61)
  place = ids[0].tolist().index(60)
  if kind != "unidec":  # a run does the same
    of_run = Model.load(workdir, scores=view, add_labels={"n": held_out}, warm=False)
    np.testing.assert_allclose(of_run.predict([held_out], 61)[1], scores, atol=2e-5)
  width = found.embed([""]).shape[1]  # the label's frequency, if there is one, is the mean of those trained
  own = again.embed([held_out])[0] @ again._vectors[60][:width] + again._vectors[:60, width:].mean(0).sum()
  np.testing.assert_allclose(scores[0, place], own, atol=1e-5)
  more_than_texts = kind in ("prime", "dexa", "prior", "unidec") or "raw" in kind
  if not more_than_texts:
    assert place == 0


def test_the_files_of_an_index_agree(folder):
  workdir = made_runs.made(folder, "bag")
  export.export(workdir, str(folder / "elsewhere"))
  index = folder / "elsewhere" / "index"
  vectors = np.load(index / "labels.npy", allow_pickle=False)
  lines = [json.loads(line) for line in (index / "labels.jsonl").read_text().splitlines()]
  labels = Model.load(workdir).labels
  expected = [{"id": number, "key": f"l{number}", "text": text} for number, text in enumerate(labels)]
  assert lines == expected
  assert export.Exported.load(folder / "elsewhere").keys == [one["key"] for one in expected]
  raw = (index / "labels.faiss").read_bytes()
  head = np.dtype(
    [("kind", "S4"), ("d", "<i4"), ("n", "<i8"), ("x", "<i8", 2), ("t", "u1"), ("m", "<i4"), ("s", "<u8")]
  )
  found = np.frombuffer(raw[: head.itemsize], head)[0]
  assert (found["kind"], found["d"], found["n"], found["t"], found["m"]) == (b"IxFI", 16, 60, 1, 0)
  assert found["s"] == 60 * 16 and raw[head.itemsize :] == vectors.astype("<f4").tobytes()


def test_scann_has_a_folder_of_its_own_where_labels_are_many(tmp_path):
  scann = pytest.importorskip("scann")
  rng = np.random.default_rng(0)
  vectors = rng.normal(size=(1500, 8)).astype(np.float32)
  parts, texts, facts = [vectors[:700], vectors[700:]], [""] * 1500, [{}] * 1500
  of_labels = {"keys": texts, "names": texts, "facts": facts}
  assert not label_files.write(tmp_path / "index", parts, texts, vectors[:60], **of_labels)
  moved = (tmp_path / "index").rename(tmp_path / "moved")
  settings = json.loads((moved / "scann.json").read_text())
  searcher = scann.scann_ops_pybind.load_searcher(str(moved / "scann"))
  ids, _ = searcher.search_batched(vectors[:50], **{**settings, "final_num_neighbors": 1})
  truth = np.argmax(vectors[:50] @ vectors.T, axis=1)
  assert np.mean(ids[:, 0] == truth) > 0.9
  assert not list(moved.rglob("*.pkl"))
  assert len(label_files.read_sample(moved)) == 60
