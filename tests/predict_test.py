"""A trained run from Python, as a matrix, and at a prompt."""

import contextlib
import io
import json
import os
import pathlib
import pty
import select
import subprocess
import sys
import time

import numpy as np
import pytest
import scipy.sparse as sp
import tiny_runs
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

import xmc_jax
from xmc_jax import prompt
from xmc_jax.contract import UserError
from xmc_jax.predict import predict_command, predict_lines

ROOT = pathlib.Path(__file__).parent.parent
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
  config = xmc_jax.config.read(workdir / "config.json")
  ids, scores, _ = xmc_jax.train(config, workdir).predict(TEXTS, k=3)
  assert "P@1" in capsys.readouterr().out
  expected = xmc_jax.Model.load(workdir).predict(TEXTS, k=3)
  np.testing.assert_array_equal(ids, expected[0])
  np.testing.assert_array_equal(scores, expected[1])


def test_training_from_python_refuses_what_cannot_work(tmp_path):
  config = xmc_jax.config.default()
  config.train.batch_size = 0
  with pytest.raises(UserError, match=r"train\.batch_size = 0"):
    xmc_jax.train(config, tmp_path / "run")
  assert not (tmp_path / "run").exists()


# --- a matrix ---


@pytest.mark.parametrize("texts", [TEXTS, TEXTS[:1], []], ids=len)
@pytest.mark.parametrize("block", [1, 5, 1024])
def test_a_matrix_holds_what_lines_do(workdir, model, tmp_path, texts, block):
  (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
  path = tmp_path / "found.npz"
  assert predict_command(workdir, str(tmp_path / "texts.txt"), str(path), 4, block=block) == len(texts)
  found, lines = sp.load_npz(path), io.StringIO()
  assert found.shape == (len(texts), len(model.labels))
  predict_lines(model, texts, lines, 4, block)
  expected = [json.loads(line)["labels"] for line in lines.getvalue().splitlines()]
  ids = [label["id"] for row in expected for label in row]
  scores = [label["score"] for row in expected for label in row]
  assert found.indices.tolist() == ids and np.diff(found.indptr).tolist() == [4] * len(texts)
  np.testing.assert_allclose(found.data, scores, atol=1e-6)
  assert [entry.name for entry in tmp_path.glob("found*")] == ["found.npz"]


def test_a_matrix_that_cannot_be_written_is_one_line(workdir, tmp_path):
  (tmp_path / "texts.txt").write_text("barn\n")
  (tmp_path / "file").touch()
  with pytest.raises(UserError, match=r"file/found\.npz: cannot be written"):
    predict_command(workdir, str(tmp_path / "texts.txt"), str(tmp_path / "file" / "found.npz"), 4)


# --- a prompt ---


def _asked(model, typed: str, capsys) -> str:
  with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
    pipe.send_text(typed)
    prompt.ask(model, 3)
  return capsys.readouterr().out


def test_enter_keeps_the_answer(model, capsys):
  _, scores, names = model.predict(["barn kelt"], 3)
  expected = "".join(f"{score:8.3f}  {name}\n" for score, name in zip(scores[0], names[0]))
  assert _asked(model, "barn kelt\r\x04", capsys) == expected + "\n"


@pytest.mark.parametrize("typed", ["\x04", "\x03", "\r \r\x04", "half a text\x03"])
def test_it_is_left_without_an_answer(model, capsys, typed):
  assert _asked(model, typed, capsys) == ""


def test_labels_do_not_obey_a_stranger(capsys):
  class Stranger:
    labels = ("\x1b[2Jgone\nand more " + "long " * 100,)

    def check_k(self, k):
      pass

    def predict(self, texts, k):
      return np.zeros((1, 1), int), np.ones((1, 1)), [list(self.labels)]

  (line,) = prompt.answered(Stranger(), "a", 1).splitlines()
  assert "\x1b" not in line and line.startswith("   1.000  �[2Jgone and more") and len(line) <= 120


@pytest.mark.slow
def test_labels_follow_the_text_as_it_is_typed(workdir, model):
  """In a terminal, through the command line, without Enter."""
  ours, theirs = pty.openpty()
  process = subprocess.Popen(
    [sys.executable, "-m", "xmc_jax.main", "--mode=predict", f"--workdir={workdir}", "--k=2"],
    cwd=ROOT,
    stdin=theirs,
    stdout=theirs,
    stderr=theirs,
    env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
  )
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
