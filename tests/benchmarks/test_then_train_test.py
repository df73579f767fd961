"""Checks benchmarks/learning.py: copies of rows, what it counts by hand, and all of it on tiny runs."""

import gzip
import json
import types

import numpy as np
import pytest
import scipy.sparse as sp
import tiny_runs

from benchmarks import learning
from xmc_jax.cli import commands
from xmc_jax.distributed import runtime

pytestmark = pytest.mark.slow


def test_a_copy_has_the_rows_of_training_files_alone(tmp_path):
  source, copy = tmp_path / "set", tmp_path / "runs" / "copy"
  source.mkdir()
  (source / "trn_X.txt").write_text("a\nb\n\nd\n")
  (source / "trn_X_Y.txt").write_text("4 2\n0:1\n\n1:1\n0:1 1:1\n")
  (source / "tst_X.txt").write_text("e\n")
  (source / "trn_filter_labels.txt").write_text("1 0\n3 1\n")
  with gzip.open(source / "more-train.tsv.gz", "wb") as file:
    file.write(b"a\r\nb\r\nc\r\nd\r\n")
  learning.write_copy(source, copy, np.array([1, 3]))
  texts = {path.name: path.read_text() for path in copy.glob("*.txt")}
  assert texts == {
    "trn_X.txt": "b\nd\n",
    "trn_X_Y.txt": "2 2\n\n0:1 1:1\n",
    "tst_X.txt": "e\n",
    "trn_filter_labels.txt": "0 0\n1 1\n",
  }
  assert gzip.decompress((copy / "more-train.tsv.gz").read_bytes()) == b"b\r\nd\r\n"


def test_new_labels_are_counted_by_their_earlier_texts(monkeypatch):
  labels = [[1, 0, 0], [0, 1, 0], [0, 1, 1], [0, 1, 0], [0, 1, 1], [0, 0, 1]]
  train = types.SimpleNamespace(
    texts=np.array(["a", "b", "c", "b", "d", "e"]),  # the fourth came before
    unfiltered_positives=sp.csr_matrix(np.array(labels, np.float32)),
  )
  dataset, portions = types.SimpleNamespace(train=train), [np.array([2, 1]), np.array([3]), np.array([4, 5])]
  halves = learning.Halves(dataset, np.array([0]), portions, np.ones(3), np.array([False, True, True]))
  vectors = np.array([[0, 0], [1, 1], [0, 0], [0, 0], [1, 1], [-1, 0]])  # in the order of the portions
  ids = {"some": np.array([[1, -1], [0, 2], [1, 0], [0, 2], [0, 2]])}
  monkeypatch.setattr(learning, "_FIRST", 2)
  found = learning.after(halves, ids, vectors)
  assert found["0"] == {"cases": 3, "some": pytest.approx(1 / 3, abs=1e-4)}  # "c" gets 1, not 2; "b" not 1
  assert found["1"] == {"cases": 2, "some": 1.0}  # label 2 of "d" and of "e", after "c"
  assert found["1, near"] == {"cases": 1, "some": 1.0}  # to "e" three are closer than "c"
  assert found["2"] == {"cases": 0}  # label 1 of "d" comes after three


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  folder = tmp_path_factory.mktemp("portions")
  tiny_runs.write_data(folder / "tiny")
  return folder


def _command(place, monkeypatch, *more):
  """Runs the benchmark, with tiny runs; returns what it writes, and the runs that it trained."""
  trained = []

  def train(_, row, board):
    workdir = board.folder(row, 0)
    if not learning.accuracy_rows.is_finished(workdir):
      trained.append(board.name)
      start = dict(flag.removeprefix("--config.").split("=") for flag in board.extra if "init_from" in flag)
      settings = {"eval.scores": "hybrid", "train.num_epochs": 1, **start}
      commands.train_and_test(tiny_runs.config(learning.pathlib.Path(board.data), **settings), workdir)
    return workdir

  monkeypatch.setattr(runtime, "start", lambda *_: None)  # it would set up the whole process
  monkeypatch.setattr(learning, "trained", train)
  monkeypatch.setattr(learning, "_RESULTS", place / "results")
  flags = [f"--data={place / 'tiny'}", f"--runs={place / 'runs'}", "--portions=5", *more]
  monkeypatch.setattr("sys.argv", ["learning", *flags])
  learning.main()
  return json.loads((place / "results" / "tiny.json").read_text()), trained


def test_portions_are_predicted_and_then_learnt(place, monkeypatch):
  found, trained = _command(place, monkeypatch)
  assert trained == ["tiny.half", "tiny"]
  assert found["rows"] == {"first": 100, "second": 100, "test": 50}
  before, learnt = found["curves"]["no learning"], found["curves"]["learn only"]
  assert before["P@1"][0] == learnt["P@1"][0] and before["P@5"][1:] != learnt["P@5"][1:]
  assert found["test"]["half"] != found["test"]["learnt"]
  assert not list((place / "runs").glob("*/*/learnt.jsonl"))  # what was learnt is in no run that stays
  stored = json.loads((place / "runs" / "tiny" / "rae_xmc-0" / "report" / "metrics.json").read_text())
  assert found["test"]["full"]["P@1"] == pytest.approx(stored["metrics"]["P@1"], abs=1e-4)
  half = json.loads((place / "runs" / "tiny.half" / "rae_xmc-0" / "report" / "metrics.json").read_text())
  assert found["test"]["half"]["P@1"] == pytest.approx(half["metrics"]["P@1"], abs=1e-4)
  assert _command(place, monkeypatch) == (found, [])
  opened, trained_on = learning.Model.load(place / "runs" / "tiny.half" / "rae_xmc-0", scores="hybrid"), []
  monkeypatch.setattr(learning, "trained_on", lambda _, rows, *more: trained_on.append(len(rows)) or opened)
  again, more = _command(place, monkeypatch, "--retrain", "--train_on=1")
  assert more == ["tiny.on"] and (place / "runs" / "tiny.on" / "rae_xmc-0" / "known.npy").exists()
  assert again["test"].pop("trained on") not in again["test"].values() and again["test"] == found["test"]
  assert trained_on == [100, 120, 140, 160, 180]
  assert again["curves"].pop("retrained at each tenth") == before  # as it is the run of the first half
  assert again["curves"] == found["curves"]
