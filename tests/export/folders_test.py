"""Exports killed, misplaced, damaged; functions without our classes; strangers' texts in a card."""

import json
import re
import shutil
import types
from unittest import mock

import numpy as np
import pytest
import safetensors.numpy
import yaml
from jax import export as jax_export
from tokenizers import Tokenizer

from tests.export import made_runs
from xmc_jax import export
from xmc_jax.errors import DataError, UserError
from xmc_jax.export import card, label_files, measured, programs
from xmc_jax.export.exported import read_facts
from xmc_jax.runs.model import Model
from xmc_jax.storage import atomic, whole_folder

KILLED = mock.Mock(side_effect=KeyboardInterrupt)


@pytest.fixture(scope="module")
def exported(folder):
  return made_runs.exported(folder, "bag") / "export"


def _files(folder):
  return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_functions_are_called_without_our_classes(exported, folder):
  inner = exported / "stablehlo"
  signature = json.loads((inner / "signature.json").read_text())
  tokenizer = Tokenizer.from_file(str(inner / signature["tokenizer"]))
  parameters = safetensors.numpy.load_file(inner / "parameters.safetensors")
  blob = (inner / signature["functions"]["embed_points"]).read_bytes()
  program = jax_export.deserialize(bytearray(blob))
  assert program.platforms == ("cpu", "cuda", "tpu") == tuple(signature["platforms"])
  model = Model.load(folder / "runs" / "bag")
  texts = ["bamarn nuve " * number for number in range(1, 12)]
  for given in (texts[:1], texts, texts * 40):
    found = tokenizer.encode_batch(given)
    ids = np.array([one.ids for one in found], np.int32)
    mask = np.array([one.attention_mask for one in found], np.int32)
    assert ids.shape[1] <= 24
    np.testing.assert_allclose(program.call(parameters, ids, mask), model.embed(given), atol=2e-6)
  one = np.ones((1, 1), np.int32)
  assert np.isfinite(program.call(parameters, 7 * one, one)).all()
  too_long = np.ones((1, 25), np.int32)
  with pytest.raises(ValueError):
    program.call(parameters, too_long, too_long)


def test_a_killed_export_leaves_nothing_that_looks_finished(folder, tmp_path, monkeypatch):
  workdir, target = made_runs.made(folder, "bag"), tmp_path / "out"
  with monkeypatch.context() as patch:
    patch.setattr(card, "text", KILLED)  # the last of all files
    with pytest.raises(KeyboardInterrupt):
      export.export(workdir, str(target))
  assert not target.exists()
  export.export(workdir, str(target))
  assert export.Exported.load(target).predict(["bamarn"], 1)[0].shape == (1, 1)
  assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_is_no_export_of_ours_is_not_replaced(folder, tmp_path):
  workdir = made_runs.made(folder, "bag")
  (tmp_path / "mine").mkdir()
  (tmp_path / "mine" / "thesis.tex").write_text("x")
  (tmp_path / "file").write_text("x")
  (tmp_path / "link").symlink_to(tmp_path / "mine")
  for name, said in (("mine", "other files"), ("file", "is a file"), ("link", "is a link")):
    with pytest.raises(UserError, match=said):
      export.export(workdir, str(tmp_path / name))
  with pytest.raises(UserError, match="other files"):
    export.export(workdir, str(workdir))
  assert (tmp_path / "mine" / "thesis.tex").read_text() == "x"


def test_no_room_and_no_such_scores_are_said_before_anything_stands(folder, tmp_path, monkeypatch):
  workdir = made_runs.made(folder, "bag")
  with pytest.raises(UserError, match="scores"):
    export.export(workdir, str(tmp_path / "out"), scores="classifier")
  monkeypatch.setattr(atomic.shutil, "disk_usage", lambda place: types.SimpleNamespace(free=1000))
  with pytest.raises(UserError, match="the export takes up to"):
    export.export(workdir, str(tmp_path / "out"))
  assert not (tmp_path / "out").exists()


def test_a_kill_while_labels_are_added_leaves_the_old_or_the_new(copied, monkeypatch):
  before = _files(copied / "index")
  with monkeypatch.context() as patch:
    patch.setattr(label_files, "write_faiss", KILLED)
    with pytest.raises(KeyboardInterrupt):
      export.add_labels(copied, ["new"])
  assert _files(copied / "index") == before
  (copied / "index").rename(copied / ".index.old")  # killed in the exchange
  (copied / ".index.building-1-a").mkdir()
  found = export.Exported.load(copied)
  assert len(found.labels) == 60
  assert found.add_labels(["new"]).tolist() == [60]
  assert not list(copied.glob(".*"))
  assert len(export.Exported.load(copied).labels) == 61


def test_labels_are_added_once_and_only_texts(copied):
  one, other = (export.Exported.load(copied) for _ in range(2))
  assert one.add_labels(["a b"]).tolist() == [60]
  assert other.add_labels(["c", " a  b "]).tolist() == [61, 60]  # it sees what the first has added
  assert one.add_labels(["c"]).tolist() == [61] and len(one.labels) == 62
  assert not len(one.add_labels([]))
  for wrong, said in ((["x", " "], "label 2 of 2"), ("text", "list of str"), ([1], "list of str")):
    with pytest.raises(UserError, match=said):
      one.add_labels(wrong)
  for k in (0, 63):
    with pytest.raises(UserError, match="k ="):
      one.predict(["x"], k)
  assert one.predict([], 2)[0].shape == (0, 2)


def test_damage_is_said_in_one_line(copied, tmp_path):
  with pytest.raises(UserError, match="no exported run"):
    export.Exported.load(tmp_path / "nowhere")
  spoilt = {
    "export.json": ('{"format": "xmc_jax export", "version": 2}', ": expected format version 3, found 2"),
    "index/labels.jsonl": ('{"text": "a"}\n{', ", line 2: not readable"),
    "index/labels.npy": ("\x93NUMPY", ""),
    "stablehlo/parameters.safetensors": ("x", ""),
    "stablehlo/tokenizer.json": ("{}", ""),
    "stablehlo/embed_points.stablehlo": ("x" * 100, ""),
  }
  for name, (content, said) in spoilt.items():
    file, before = copied / name, (copied / name).read_bytes()
    file.write_text(content)
    with pytest.raises(UserError, match=rf"\A{re.escape(str(file))}{said}.*\Z"):
      export.Exported.load(copied).predict(["x"], 1)
    assert name != "export.json" or read_facts(copied)  # so that a new export replaces it
    file.write_bytes(before)
  shutil.move(copied / "index", tmp_path / "index")
  (copied / "index").symlink_to(tmp_path / "index")
  with pytest.raises(UserError, match="link"):
    export.add_labels(copied, ["new"])


def test_a_function_that_calls_others_is_refused(copied, monkeypatch):
  monkeypatch.setattr(programs, "_CALLS", ())
  with pytest.raises(DataError, match="it calls shape_assertion"):
    export.Exported.load(copied).embed(["x"])


def test_a_second_writer_is_kept_out(tmp_path):
  pytest.importorskip("fcntl")
  first, second = (whole_folder.written_whole(tmp_path / "out", lambda path: True) for _ in range(2))
  with first, pytest.raises(UserError, match="another process"):
    second.__enter__()


HOSTILE = 'a"b\n---\nlicense: mit\n# <script>x</script> [y](javascript:z) `c` \x1b[2J\u202e | {{d}} \ufffe'


def test_texts_of_strangers_stay_texts_in_a_card(folder, monkeypatch):
  workdir = made_runs.made(folder, "bag")
  model = Model.load(workdir)
  run = model._run
  monkeypatch.setattr(run.dataset, "name", HOSTILE)
  monkeypatch.setitem(run.dataset.manifest, "name", HOSTILE)
  monkeypatch.setitem(run.dataset.manifest, "notices", [f"```\n{HOSTILE}\n```"])
  facts = {"method": "dexml", "step": 1, "max_length": 24, "width": 16, "adds_labels": True}
  facts |= {"ranks_by": "x", "index_ranks_by": "x"}
  text = card.text(run, facts, card.Sentence(), "", "fused")
  _, head, body = text.split("---\n", 2)
  found = yaml.safe_load(head)
  assert found["datasets"] == ["a-b-license-mit-script-x-script-y-javascript-z-c-2J-d"]
  assert found["license"] == "other"
  assert found["model-index"][0]["results"][0]["metrics"][0] == {"type": "P@1", "name": "P@1", "value": 50.0}
  outside = re.sub(r"```.*?```", "", body, flags=re.DOTALL)
  assert "<script>" not in outside and "](javascript" not in outside
  assert "| P@1 | 50.00 | 40.00 to 60.00 |" in body
  assert body.count("```") % 2 == 0 and not re.search("[\x1b\u202e]", text) and "\ufffe" not in head
  assert str(folder) not in text  # paths of this machine


def test_a_report_of_other_parameters_is_not_shown(folder):
  workdir = made_runs.made(folder, "bag")
  found = measured.read(workdir, "", 1)
  assert found["metrics"] == {"P@1": 0.5}
  table = measured.table(found, {"ranks_by": "", "index_ranks_by": ""})
  assert "50 test points (30 without labels count as 0)" in table
  assert measured.read(workdir, "", 2) == {} == measured.read(workdir, "encoder", 1)
