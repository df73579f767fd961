"""A trained run from Python, as a matrix, and at a prompt."""

import contextlib
import io
import json
import os
import pathlib
import pty
import select
import shutil
import subprocess
import sys
import time
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
import tiny_runs
from kills import killed
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

import xmc_jax
from xmc_jax import data, methods
from xmc_jax.cli import interactive
from xmc_jax.data import documents
from xmc_jax.errors import UserError
from xmc_jax.retrieval import explanations
from xmc_jax.runs import label_functions, ranking, trained
from xmc_jax.runs.best_labels import LabelRequest
from xmc_jax.runs.predict import predict_command, predict_lines

ROOT = pathlib.Path(__file__).parents[2]
SOURCES = {"encoder", "memory", "memory_regression", "lexical_memory", "lexical_labels"}
TEXTS = ["barn kelt", "", "loma mive nuxo", "suss"] * 3


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
  place = tmp_path_factory.mktemp("predict")
  config = tiny_runs.config(tiny_runs.write_data(place / "data"), **{"train.num_epochs": 1})
  xmc_jax.train(config, place / "run")
  return place / "run"


@pytest.fixture(scope="module")
def model(workdir):
  return xmc_jax.Model.load(workdir)


def test_training_from_python_gives_its_model(workdir, capsys):
  """The whole call; the second one finds all done, and what it returns predicts as the folder does."""
  config = methods.read_config(workdir / "config.json")
  ids, scores, _ = xmc_jax.train(config, workdir).predict(TEXTS, k=3)
  assert "P@1" in capsys.readouterr().out
  expected = xmc_jax.Model.load(workdir).predict(TEXTS, k=3)
  np.testing.assert_array_equal(ids, expected[0])
  np.testing.assert_array_equal(scores, expected[1])


def test_training_from_python_refuses_what_cannot_work(tmp_path):
  config = xmc_jax.default_config()
  config.train.batch_size = 0
  with pytest.raises(UserError, match=r"train\.batch_size = 0"):
    xmc_jax.train(config, tmp_path / "run")
  assert not (tmp_path / "run").exists()


# --- a matrix ---


@pytest.mark.parametrize("texts", [TEXTS, TEXTS[:1], []], ids=len)
def test_a_matrix_holds_what_lines_do(workdir, model, tmp_path, texts):
  (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
  path = tmp_path / "found.npz"
  assert predict_command(workdir, str(tmp_path / "texts.txt"), str(path), LabelRequest(4), block=5) == len(
    texts
  )
  found, lines = sp.load_npz(path), io.StringIO()
  assert found.shape == (len(texts), len(model.labels))
  predict_lines(model, documents.of_lines(texts), lines, LabelRequest(4))
  expected = [json.loads(line)["labels"] for line in lines.getvalue().splitlines()]
  assert all(label["key"] == f"l{label['id']}" for row in expected for label in row)
  assert json.loads(np.load(path)["keys.json"]) == list(model.keys) == [f"l{id_}" for id_ in range(60)]
  ids = [label["id"] for row in expected for label in row]
  scores = [label["score"] for row in expected for label in row]
  assert found.indices.tolist() == ids
  assert np.diff(found.indptr).tolist() == [4 * bool(text) for text in texts]
  np.testing.assert_allclose(found.data, scores, atol=1e-6)
  assert [entry.name for entry in tmp_path.glob("found*")] == ["found.npz"]


def test_a_loaded_model_has_opened_all_that_it_answers_by(workdir, monkeypatch):
  model = xmc_jax.Model.load(workdir)
  refuse = mock.Mock(side_effect=AssertionError("opened at the first answer"))
  for module, name in ((ranking, "hybrid"), (ranking, "own_ranker"), (trained, "Encoder")):
    monkeypatch.setattr(module, name, refuse)
  ids = model.predict(TEXTS[:1], 3)[0]
  assert ids.shape == (1, 3)
  np.testing.assert_array_equal(model.predict(TEXTS[:1], 3)[0], ids)


# --- reasons ---


@pytest.fixture(scope="module", params=["hybrid", "fused"])
def explained(request, workdir, tmp_path_factory):
  """A run's folder that ranks by all sources, or by its own scores."""
  folder = tmp_path_factory.mktemp("explained") / request.param
  shutil.copytree(workdir, folder)
  config = json.loads((folder / "config.json").read_text())
  config["eval"]["scores"] = request.param
  (folder / "config.json").write_text(json.dumps(config))
  return folder


def test_each_label_has_its_reason(explained):
  model, out = xmc_jax.Model.load(explained), io.StringIO()
  assert predict_lines(model, documents.of_lines(TEXTS[:4]), out, LabelRequest(5, explain=True), 3) == 4
  lines, plain = [json.loads(line) for line in out.getvalue().splitlines()], io.StringIO()
  predict_lines(model, documents.of_lines(TEXTS[:4]), plain, LabelRequest(5), 3)
  known = model._run.dataset.train
  carriers = {text: {*labels.indices} for text, labels in zip(known.texts, known.unfiltered_positives)}
  for line, without in zip(lines, map(json.loads, plain.getvalue().splitlines()), strict=True):
    for label in line["labels"]:
      why = label["why"]
      assert set(why) == {"words", "sources", "voters"} and set(why["sources"]) <= SOURCES
      assert all(1 <= rank <= 10 for rank in why["sources"].values())
      for voter in why["voters"]:
        assert label["id"] in carriers[voter["text"]] and voter["weight"] > 0
      weights = [voter["weight"] for voter in why["voters"]]
      assert weights == sorted(weights, reverse=True) and len(weights) <= 3
    bare = [{name: value for name, value in label.items() if name != "why"} for label in line["labels"]]
    assert bare == without["labels"]
  assert any(label["why"]["voters"] for label in lines[0]["labels"])
  first = lines[0]["labels"][0]["why"]["sources"]
  assert first and list(first.values()) == sorted(first.values())


def test_a_source_that_finds_few_labels_gives_fewer(workdir):
  """No text shares a word with the last one: there is nothing to rank, and JSON has no infinity."""
  model, out = xmc_jax.Model.load(workdir, scores="lexical_labels"), io.StringIO()
  predict_lines(model, documents.of_lines([model.labels[7], "zzz"]), out, LabelRequest(60, explain=True))
  found, none = (json.loads(line)["labels"] for line in out.getvalue().splitlines())
  assert 0 < len(found) < 60 and found[0]["why"]["sources"]["lexical_labels"] == 1 and none == []
  assert all(label["id"] >= 0 and np.isfinite(label["score"]) for label in found)
  assert interactive.labels_as_text(model, "zzz", LabelRequest(60)) == ""


def test_a_killed_command_goes_on_with_reasons_or_without(explained, tmp_path, capsys):
  """Not the one after the other; what the first command makes for ranking is no change of the run."""
  for name in ("memory.npy", "hybrid.json"):
    (explained / name).unlink(missing_ok=True)
  source = tmp_path / "texts.txt"
  source.write_text("".join(f"{text}\n" for text in TEXTS))

  def command(target: str, explain: bool) -> str:
    predict_command(explained, str(source), str(tmp_path / target), LabelRequest(2, explain=explain), block=4)
    return capsys.readouterr().err

  for goes_on in (True, False):
    (tmp_path / "found").unlink(missing_ok=True)
    with killed(xmc_jax.Model, "ranked", 3):
      command("found", explain=True)
    assert not (tmp_path / "found").exists()
    assert ("predict: going on after 8 texts" in command("found", explain=goes_on)) == goes_on
    command("undisturbed", explain=goes_on)
    assert (tmp_path / "found").read_bytes() == (tmp_path / "undisturbed").read_bytes()
    lines = [json.loads(line) for line in (tmp_path / "found").read_text().splitlines()]
    assert [line["text"] for line in lines] == TEXTS
    assert all(("why" in label) == goes_on for line in lines for label in line["labels"])
  assert not list(tmp_path.glob("*.part*"))


# --- a prompt ---


def _asked(model, typed: str, capsys, explain: bool = False) -> str:
  with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
    pipe.send_text(typed)
    interactive.show_prompt(model, LabelRequest(3, explain=explain))
  return capsys.readouterr().out


def test_enter_keeps_the_answer(model, capsys):
  ids, scores, names = model.predict(["barn kelt"], 3)
  lines = [f"{score:8.3f}  {name} (l{id_})" for id_, score, name in zip(ids[0], scores[0], names[0])]
  assert _asked(model, "barn kelt\r\x04", capsys) == "\n".join(lines) + "\n\n"


@pytest.mark.parametrize("pasted", ["\x1b[200~barn\n\nkelt\x1b[201~", "barn\r\rkelt", "barn\n\nkelt"])
def test_a_paste_is_one_text(model, capsys, pasted):
  """Also where the terminal does not mark it as one."""
  expected = interactive.labels_as_text(model, "barn\n\nkelt", LabelRequest(3))
  assert _asked(model, f"{pasted}\r\x04", capsys) == expected + "\n\n"


def test_a_prompt_says_why(explained, capsys):
  model = xmc_jax.Model.load(explained)
  ids, scores, names, reasons = model.predict(["barn kelt"], 3, explain=True)
  said = _asked(model, "barn kelt\r\x04", capsys, explain=True)
  assert all(len(line) <= 80 for line in said.splitlines())
  expected = []
  for id_, score, name, why in zip(ids[0], scores[0], names[0], reasons[0]):
    expected += [f"{score:8.3f}  {name} (l{id_})", explanations.line(why)]
  assert " ".join(said.split()) == " ".join(" ".join(expected).split())
  if model._run.config.eval.scores == "hybrid":  # probabilities stand there as they are
    assert all(0 < score <= 1 for score in scores[0])


@pytest.mark.parametrize("typed", ["\x04", "\x03", "\r \r\x04", "half a text\x03"])
def test_it_is_left_without_an_answer(model, capsys, typed):
  assert _asked(model, typed, capsys) == ""


def test_labels_do_not_obey_a_stranger(capsys):
  class Stranger:
    labels = label_keys = ("\x1b[2Jgone\nand more " + "long " * 100,)

    def check_k(self, k):
      pass

    def ranked(self, texts, request):
      return self, (np.zeros((1, 1), int), np.ones((1, 1)), [list(self.labels)])

  (line,) = interactive.labels_as_text(Stranger(), "a", LabelRequest(1)).splitlines()
  assert "\x1b" not in line and line.startswith("   1.000  �[2Jgone and more") and len(line) <= 120


@pytest.mark.slow
def test_labels_follow_the_text_as_it_is_typed(workdir, model):
  """In a terminal, through the command line, without Enter."""
  ours, theirs = pty.openpty()
  command = [sys.executable, "-m", "xmc_jax.main", "--mode=predict", f"--workdir={workdir}", "--k=2"]
  environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
  streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
  process = subprocess.Popen(command, cwd=ROOT, env=environment, **streams)
  os.close(theirs)

  def seen(words: str, after: str = "") -> None:
    text, deadline = "", time.monotonic() + 60
    while after not in text.partition(words)[2] or words not in text:
      assert time.monotonic() < deadline and process.poll() is None, text
      if select.select([ours], [], [], 0.1)[0]:
        text += os.read(ours, 65536).decode(errors="replace")
        if "\x1b[6n" in text:  # asks where the cursor is
          os.write(ours, b"\x1b[1;1R")
          text = text.replace("\x1b[6n", "")

  try:
    seen("text>")
    # Below the text the screen's changes alone are written; Enter writes all, and then a new prompt:
    # between two prompts the terminal itself would take Ctrl-D.
    for text, keys, after in (("barn", b"barn", ""), ("barn kelt", b" kelt\r", "text>")):
      os.write(ours, keys)
      seen(f"{model.predict([text], 1)[1][0, 0]:.3f}", after)
    os.write(ours, b"\x04")
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:  # it waits until all is read
      if select.select([ours], [], [], 0.1)[0]:
        with contextlib.suppress(OSError):  # nobody is at the other end any more
          os.read(ours, 65536)
    assert process.returncode == 0
  finally:
    process.kill()
    process.wait()
    os.close(ours)


def test_added_labels_without_a_key_are_called_by_their_text(tmp_path):
  (tmp_path / "new.csv").write_text("id,text\n,Ulm\n,Trier\nx, Bern \n")
  found = label_functions.read_added(tmp_path / "new.csv", {"options": data.Options()._asdict()})
  assert found == {"Ulm": "Ulm", "Trier": "Trier", "x": "Bern"}
